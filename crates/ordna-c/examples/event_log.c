/* An event log on a disk. Events are appended in order and read from a given time on, old events
 * are removed, and the log remains after the program has ended. Usage: event_log DIRECTORY (which
 * need not exist).
 *
 * A key has 16 bytes: the seconds of the event and its number, both in big-endian order.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ordna.h"

enum { KEY = 16 };

struct log {
  ordna_store *store;
  uint64_t next;
};

static void must(int status) {
  if (status >= 0) return;
  char error[256];
  ordna_last_error(error, sizeof error);
  fprintf(stderr, "event_log: %s\n", error);
  exit(1);
}

static void expect(int condition, const char *what) {
  if (condition) return;
  fprintf(stderr, "event_log: expected %s\n", what);
  exit(1);
}

static void put_number(uint8_t *bytes, uint64_t number) {
  for (int i = 7; i >= 0; i--, number >>= 8) bytes[i] = (uint8_t)number;
}

static uint64_t number_of(const uint8_t *bytes) {
  uint64_t number = 0;
  for (int i = 0; i < 8; i++) number = number << 8 | bytes[i];
  return number;
}

static ordna_slice key_of(uint8_t (*room)[KEY], uint64_t seconds, uint64_t number) {
  put_number(*room, seconds);
  put_number(*room + 8, number);
  return (ordna_slice){*room, KEY};
}

/* Opens the log. Entries are on the disk when an append returns. */
static struct log open_log(const char *directory) {
  struct log log = {NULL, 0};
  char error[256];
  if (ordna_open(directory, ORDNA_SYNC_ALWAYS, 0, &log.store, error, sizeof error) != 0) {
    fprintf(stderr, "event_log: %s: %s\n", directory, error);
    exit(1);
  }
  /* The next number follows the last one. */
  ordna_cursor *cursor;
  ordna_slice key;
  must(ordna_cursor_open(log.store, &cursor));
  must(ordna_cursor_end(cursor));
  int status = ordna_cursor_prev(cursor, &key, NULL);
  must(status);
  if (status == ORDNA_STATUS_OK) log.next = number_of(key.data + 8) + 1;
  ordna_cursor_free(cursor);
  return log;
}

static void append(struct log *log, uint64_t seconds, const char *event) {
  uint8_t room[KEY];
  ordna_slice key = key_of(&room, seconds, log->next++);
  must(ordna_put(log->store, key, (ordna_slice){(const uint8_t *)event, strlen(event)}));
}

/* Appends events of one second together. After a crash, all of them are present or none. */
static void append_all(struct log *log, uint64_t seconds, const char *const *events, size_t count) {
  ordna_batch *batch;
  expect(ordna_batch_new(&batch) == ORDNA_STATUS_OK, "a batch");
  for (size_t i = 0; i < count; i++) {
    uint8_t room[KEY];
    ordna_slice key = key_of(&room, seconds, log->next++);
    ordna_slice event = {(const uint8_t *)events[i], strlen(events[i])};
    expect(ordna_batch_put(batch, key, event) == ORDNA_STATUS_OK, "a write");
  }
  must(ordna_write(log->store, batch));
  ordna_batch_free(batch);
}

static int print(void *context, ordna_slice key, ordna_slice value) {
  (void)context;
  printf("%" PRIu64 " %.*s\n", number_of(key.data), (int)value.len, (const char *)value.data);
  return 0;
}

static void print_since(const struct log *log, uint64_t seconds) {
  uint8_t room[KEY];
  ordna_range since = {.lower = key_of(&room, seconds, 0), .lower_bound = ORDNA_BOUND_INCLUDED};
  must(ordna_scan(log->store, &since, print, NULL));
}

static size_t drop_before(const struct log *log, uint64_t seconds) {
  uint8_t room[KEY];
  size_t dropped = 0;
  ordna_range old = {.upper = key_of(&room, seconds, 0), .upper_bound = ORDNA_BOUND_EXCLUDED};
  must(ordna_remove_range(log->store, &old, &dropped));
  return dropped;
}

int main(int argc, char **argv) {
  if (argc != 2) {
    fprintf(stderr, "usage: event_log DIRECTORY\n");
    return 2;
  }
  const uint64_t noon = 1767268800;
  struct log log = open_log(argv[1]);
  for (uint64_t minute = 0; minute < 20; minute++) {
    char event[32];
    snprintf(event, sizeof event, "event %" PRIu64, minute);
    append(&log, noon + minute * 60, event);
  }
  const char *const together[] = {"a second event", "and a third one"};
  append_all(&log, noon + 19 * 60, together, 2);
  ordna_free(log.store);

  log = open_log(argv[1]);
  expect(log.next == 22, "22 events");
  size_t dropped = drop_before(&log, noon + 5 * 60);
  printf("%zu events were dropped, %zu are kept\n", dropped, ordna_len(log.store));
  print_since(&log, noon + 19 * 60);
  ordna_free(log.store);
  return 0;
}
