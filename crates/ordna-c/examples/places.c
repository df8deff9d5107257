/* Loads places, takes a snapshot, deletes a country, and asks the snapshot for a prefix.
 *
 *     gzip -dc data/places.tsv.gz | places SE:Upp
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ordna.h"

static ordna_slice slice(const char *text, size_t length) {
  return (ordna_slice){(const uint8_t *)text, length};
}

static void must(ordna_store *store, int status) {
  if (status < 0) {
    char text[256];
    ordna_error(store, text, sizeof text);
    fprintf(stderr, "places: %s\n", text);
    exit(1);
  }
}

/* Field `wanted` of a line of fields that tabs separate. */
static ordna_slice field(const char *line, int wanted) {
  while (wanted-- > 0) {
    const char *tab = strchr(line, '\t');
    if (!tab) return slice(line, 0);
    line = tab + 1;
  }
  return slice(line, strcspn(line, "\t\n"));
}

static int print(void *count, ordna_slice key, ordna_slice value) {
  ++*(int *)count;
  printf("%.*s\t%.*s\n", (int)key.len, (const char *)key.data, (int)value.len,
         (const char *)value.data);
  return 0;
}

int main(int argc, char **argv) {
  if (argc != 2) {
    fprintf(stderr, "usage: gzip -dc places.tsv.gz | places PREFIX\n");
    return 2;
  }
  ordna_store *store;
  if (ordna_new(0, &store) != ORDNA_STATUS_OK) return 1;
  char *line = NULL;
  size_t room = 0;
  int header = 1;
  while (getline(&line, &room, stdin) > 0) {
    if (header) {
      header = 0;
      continue;
    }
    ordna_slice id = field(line, 0), country = field(line, 1), name = field(line, 3);
    char key[512];
    int length = snprintf(key, sizeof key, "%.*s:%.*s:%.*s", (int)country.len,
                          (const char *)country.data, (int)name.len, (const char *)name.data,
                          (int)id.len, (const char *)id.data);
    if (length < 0 || (size_t)length >= sizeof key) continue;
    must(store, ordna_put(store, slice(key, (size_t)length), field(line, 4)));
  }
  free(line);

  ordna_snapshot *before;
  must(store, ordna_snapshot_take(store, &before));
  ordna_range sweden = {.lower = slice("SE:", 3), .upper = slice("SE;", 3),
                        .lower_bound = ORDNA_BOUND_INCLUDED, .upper_bound = ORDNA_BOUND_EXCLUDED};
  size_t removed = 0;
  must(store, ordna_remove_range(store, &sweden, &removed));
  int shown = 0;
  ordna_snapshot_prefix(before, slice(argv[1], strlen(argv[1])), false, 10, print, &shown);
  printf("%zu places, then %zu; %d shown of the snapshot\n", ordna_snapshot_len(before),
         ordna_len(store), shown);
  ordna_free(store);
  ordna_snapshot_free(before);
  return 0;
}
