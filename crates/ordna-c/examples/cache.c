/* A cache for something slow: entries expire, a group of them is removed by its prefix, and a full
 * cache still returns pages. Run without arguments.
 */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "ordna.h"

enum { PAGE_BYTES = 4096, LIFE_MILLISECONDS = 60000 };

static ordna_slice text(const char *bytes) {
  return (ordna_slice){(const uint8_t *)bytes, strlen(bytes)};
}

static void fail(void) {
  char error[256];
  ordna_last_error(error, sizeof error);
  fprintf(stderr, "cache: %s\n", error);
  exit(1);
}

static void expect(int condition, const char *what) {
  if (!condition) {
    fprintf(stderr, "cache: expected %s\n", what);
    exit(1);
  }
}

/* The slow part: creates a page of PAGE_BYTES for a user and a number. */
static void render(const char *user, int number, char *page) {
  memset(page, ' ', PAGE_BYTES);
  int length = snprintf(page, PAGE_BYTES, "page %d of %s", number, user);
  page[length] = ' ';
}

/* Creates the key of a page. The slash ends the name, so "bob" does not match pages of "bobby". */
static ordna_slice key_of(char (*room)[64], const char *user, int number) {
  snprintf(*room, sizeof *room, "%s/%06d", user, number);
  return text(*room);
}

/* Finds a page or creates it. Returns whether it was found. */
static bool page(ordna_store *pages, const char *user, int number, char *out) {
  char room[64];
  ordna_slice key = key_of(&room, user, number);
  size_t length;
  int status = ordna_get(pages, key, (uint8_t *)out, PAGE_BYTES, &length);
  if (status == ORDNA_STATUS_OK) return true;
  if (status != ORDNA_STATUS_NOT_FOUND) fail();
  render(user, number, out);
  ordna_slice value = {(const uint8_t *)out, PAGE_BYTES};
  status = ordna_put_for(pages, key, value, LIFE_MILLISECONDS);
  if (status != ORDNA_STATUS_OK && status != ORDNA_STATUS_MEMORY_LIMIT) fail();
  return false;
}

struct warmth {
  size_t present, bytes;
};

static int note(void *context, size_t position, const ordna_slice *value) {
  struct warmth *warmth = context;
  (void)position;
  if (value) {
    warmth->present++;
    warmth->bytes += value->len;
  }
  return 0;
}

/* Returns how many of the first pages of a user are in the cache, with one call for all of them. */
static size_t warm(ordna_store *pages, const char *user) {
  enum { PAGES = 8 };
  char rooms[PAGES][64];
  ordna_slice keys[PAGES];
  for (int i = 0; i < PAGES; i++) keys[i] = key_of(&rooms[i], user, i);
  struct warmth warmth = {0, 0};
  if (ordna_get_many(pages, keys, PAGES, note, &warmth) != ORDNA_STATUS_OK) fail();
  expect(warmth.bytes == warmth.present * PAGE_BYTES, "whole pages");
  return warmth.present;
}

int main(void) {
  ordna_store *pages;
  if (ordna_new(4 << 20, &pages) != ORDNA_STATUS_OK) return 1;
  char out[PAGE_BYTES];
  const char *users[] = {"ann", "bob", "bobby"};
  int found = 0;
  for (int round = 0; round < 3; round++) {
    for (int user = 0; user < 3; user++) {
      for (int number = 0; number < 4; number++) found += page(pages, users[user], number, out);
    }
  }
  printf("%d of 36 pages were found\n", found);
  expect(strncmp(out, "page 3 of bobby ", 16) == 0, "the page of bobby");

  size_t of_bob = 0, dropped = 0;
  if (ordna_count_prefix(pages, text("bob/"), &of_bob) != 0) fail();
  if (ordna_remove_prefix(pages, text("bob/"), &dropped) != 0) fail();
  printf("bob had %zu pages, %zu dropped; bobby has %zu\n", of_bob, dropped, warm(pages, "bobby"));

  /* One page will expire soon. */
  char room[64];
  if (ordna_expire(pages, key_of(&room, "ann", 1), 50) != ORDNA_STATUS_OK) fail();
  nanosleep(&(struct timespec){0, 100 * 1000000L}, NULL);
  expect(!page(pages, "ann", 1, out) && page(pages, "ann", 1, out), "a page that has expired");
  puts("an expired page was created again");

  /* Pages that exceed the limit are created at each request. */
  for (int number = 0; number < 2000; number++) page(pages, "zoe", number, out);
  ordna_statistics figures;
  if (ordna_statistics_of(pages, &figures) != ORDNA_STATUS_OK) fail();
  expect(figures.bytes <= figures.memory_limit && figures.keys < 2000, "a bounded cache");
  printf("full: %s\n", figures.bytes > figures.memory_limit / 2 ? "yes" : "no");

  ordna_free(pages);
  return 0;
}
