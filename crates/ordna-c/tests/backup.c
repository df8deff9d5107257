/* A backup, a restore and a cursor, for valgrind. Usage: backup DIRECTORY (must not exist). */
#include <stdio.h>
#include <string.h>

#include "ordna.h"

int main(int argc, char **argv) {
  ordna_store *store;
  ordna_cursor *cursor;
  ordna_slice key = {(const uint8_t *)"key", 3};
  char error[256];
  if (argc != 2) return 2;
  int status = ordna_open(argv[1], ORDNA_SYNC_NEVER, 0, &store, error, sizeof error);
  if (status == 0) status = ordna_put(store, key, key);
  if (status == 0) status = ordna_backup(store, NULL);
  if (status == 0) status = ordna_cursor_open(store, &cursor);
  if (status == 0) status = ordna_cursor_next(cursor, &key, NULL);
  if (status != 0) return 1;
  ordna_cursor_free(cursor);
  ordna_free(store);
  return 0;
}
