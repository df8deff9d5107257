/* The C library: every function, bad input, threads. Usage: test DIRECTORY (which is empty). */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "ordna.h"

#define CHECK(what)                                                          \
  do {                                                                       \
    if (!(what)) {                                                           \
      fprintf(stderr, "%s:%d: failed: %s\n", __FILE__, __LINE__, #what);     \
      exit(1);                                                               \
    }                                                                        \
  } while (0)

static ordna_slice text(const char *bytes) {
  return (ordna_slice){(const uint8_t *)bytes, strlen(bytes)};
}

static int is(ordna_slice slice, const char *bytes) {
  return slice.len == strlen(bytes) && memcmp(slice.data, bytes, slice.len) == 0;
}

struct seen {
  char keys[256];
  int stop_after;
  ordna_store *writes_to;
};

static int collect(void *context, ordna_slice key, ordna_slice value) {
  struct seen *seen = context;
  CHECK(value.len > 0);
  strncat(seen->keys, (const char *)key.data, key.len);
  strcat(seen->keys, " ");
  /* A callback may use the store. */
  if (seen->writes_to) CHECK(ordna_put(seen->writes_to, text("zz"), text("9")) == 0);
  return --seen->stop_after == 0;
}

static void points(void) {
  ordna_store *store;
  CHECK(ordna_new(0, &store) == ORDNA_STATUS_OK);
  uint8_t buffer[4];
  size_t length = 77;
  CHECK(ordna_get(store, text("a"), buffer, 4, &length) == ORDNA_STATUS_NOT_FOUND);
  CHECK(ordna_put(store, text("a"), text("one")) == ORDNA_STATUS_OK);
  CHECK(ordna_get(store, text("a"), buffer, 4, &length) == ORDNA_STATUS_OK);
  CHECK(length == 3 && memcmp(buffer, "one", 3) == 0);
  CHECK(ordna_put(store, text("a"), text("longer")) == ORDNA_STATUS_OK);
  CHECK(ordna_get(store, text("a"), buffer, 4, &length) == ORDNA_STATUS_TOO_SMALL && length == 6);
  CHECK(memcmp(buffer, "one", 3) == 0);
  CHECK(ordna_get(store, text("a"), NULL, 0, NULL) == ORDNA_STATUS_TOO_SMALL);
  ordna_slice empty = {NULL, 0}, longer = text("longer"), two = text("two");
  CHECK(ordna_put(store, empty, empty) == ORDNA_STATUS_OK);
  CHECK(ordna_get(store, empty, NULL, 0, &length) == ORDNA_STATUS_OK && length == 0);
  CHECK(ordna_compare_and_set(store, text("a"), &two, &two) == ORDNA_STATUS_MISMATCH);
  CHECK(ordna_compare_and_set(store, text("a"), &longer, &two) == ORDNA_STATUS_OK);
  CHECK(ordna_compare_and_set(store, text("a"), NULL, &two) == ORDNA_STATUS_MISMATCH);
  CHECK(ordna_compare_and_set(store, text("b"), NULL, &two) == ORDNA_STATUS_OK);
  CHECK(ordna_compare_and_set(store, text("b"), &two, NULL) == ORDNA_STATUS_OK);
  CHECK(ordna_len(store) == 2 && ordna_memory(store) > 0);
  CHECK(ordna_remove(store, text("a")) == ORDNA_STATUS_OK);
  CHECK(ordna_remove(store, text("a")) == ORDNA_STATUS_NOT_FOUND);
  ordna_free(store);
  CHECK(strcmp(ordna_version(), "0.1.0") == 0);
}

static void ranges(void) {
  ordna_store *store;
  CHECK(ordna_new(0, &store) == 0);
  const char *keys[] = {"a", "ab", "abc", "b", "c"};
  for (int i = 0; i < 5; i++) CHECK(ordna_put(store, text(keys[i]), text("v")) == 0);
  ordna_snapshot *before;
  CHECK(ordna_snapshot_take(store, &before) == 0);

  struct seen seen = {"", 0, NULL};
  CHECK(ordna_scan(store, NULL, collect, &seen) == 0 && !strcmp(seen.keys, "a ab abc b c "));
  seen = (struct seen){"", 2, NULL};
  CHECK(ordna_scan(store, NULL, collect, &seen) == ORDNA_STATUS_STOPPED);
  CHECK(!strcmp(seen.keys, "a ab "));
  ordna_range range = {text("ab"), text("b"), ORDNA_BOUND_EXCLUDED, ORDNA_BOUND_INCLUDED, true, 0};
  seen = (struct seen){"", 0, NULL};
  CHECK(ordna_scan(store, &range, collect, &seen) == 0 && !strcmp(seen.keys, "b abc "));
  range.limit = 1;
  seen = (struct seen){"", 0, NULL};
  CHECK(ordna_scan(store, &range, collect, &seen) == 0 && !strcmp(seen.keys, "b "));
  ordna_range crossed = {text("c"), text("a"), 1, 1, false, 0};
  seen = (struct seen){"", 0, NULL};
  CHECK(ordna_scan(store, &crossed, collect, &seen) == 0 && !strcmp(seen.keys, ""));
  CHECK(ordna_prefix(store, text("ab"), true, 0, collect, &seen) == 0);
  CHECK(!strcmp(seen.keys, "abc ab "));
  seen = (struct seen){"", 0, store};
  CHECK(ordna_prefix(store, text("a"), false, 2, collect, &seen) == 0);
  CHECK(!strcmp(seen.keys, "a ab ") && ordna_len(store) == 6);

  size_t removed = 0;
  ordna_range all_of_a = {text("a"), text("b"), 1, 2, false, 0};
  CHECK(ordna_remove_range(store, &all_of_a, &removed) == 0 && removed == 3);
  CHECK(ordna_remove_range(store, NULL, NULL) == 0 && ordna_len(store) == 0);
  /* The snapshot outlives the store. */
  ordna_free(store);
  CHECK(ordna_snapshot_len(before) == 5);
  seen = (struct seen){"", 0, NULL};
  CHECK(ordna_snapshot_prefix(before, text("ab"), false, 0, collect, &seen) == 0);
  CHECK(!strcmp(seen.keys, "ab abc "));
  seen = (struct seen){"", 0, NULL};
  CHECK(ordna_snapshot_scan(before, NULL, collect, &seen) == 0);
  CHECK(!strcmp(seen.keys, "a ab abc b c "));
  uint8_t byte;
  CHECK(ordna_snapshot_get(before, text("b"), &byte, 1, NULL) == 0 && byte == 'v');
  CHECK(ordna_snapshot_get(before, text("x"), &byte, 1, NULL) == ORDNA_STATUS_NOT_FOUND);
  ordna_snapshot_free(before);
}

static void long_scans(void) {
  ordna_store *store;
  CHECK(ordna_new(0, &store) == 0);
  for (int i = 0; i < 5000; i++) {
    char key[32];
    snprintf(key, sizeof key, "%05d", i);
    CHECK(ordna_put(store, text(key), text("v")) == 0);
  }
  struct seen {
    int next, step;
  };
  int check(void *context, ordna_slice key, ordna_slice value) {
    struct seen *seen = context;
    char want[32];
    snprintf(want, sizeof want, "%05d", seen->next);
    CHECK(is(key, want) && is(value, "v"));
    seen->next += seen->step;
    return 0;
  }
  struct seen up = {0, 1}, down = {4999, -1}, some = {4999, -1};
  CHECK(ordna_scan(store, NULL, check, &up) == 0 && up.next == 5000);
  ordna_range range = {.reverse = true};
  CHECK(ordna_scan(store, &range, check, &down) == 0 && down.next == -1);
  range.limit = 1500;
  CHECK(ordna_scan(store, &range, check, &some) == 0 && some.next == 3499);
  ordna_free(store);
}

static void bad_input(void) {
  ordna_store *store;
  CHECK(ordna_new(0, NULL) == ORDNA_STATUS_INVALID);
  CHECK(ordna_new(50000, &store) == 0);
  char error[256];
  CHECK(ordna_error(store, error, sizeof error) == 0 && !strcmp(error, ""));
  char *large = calloc(1, 70000);
  ordna_slice key = {(uint8_t *)large, 70000};
  CHECK(ordna_open("x", 0, 0, NULL, error, sizeof error) == ORDNA_STATUS_INVALID);
  CHECK(strstr(error, "place for the handle"));
  CHECK(ordna_put(store, key, text("v")) == ORDNA_STATUS_TOO_LONG);
  CHECK(ordna_error(store, error, sizeof error) > 0 && strstr(error, "70000 bytes"));
  CHECK(ordna_remove(store, key) == ORDNA_STATUS_NOT_FOUND);
  char few[8];
  CHECK(ordna_error(store, few, sizeof few) == strlen(error) && !strncmp(few, error, 7) && !few[7]);
  CHECK(ordna_get(store, key, NULL, 0, NULL) == ORDNA_STATUS_NOT_FOUND);
  CHECK(ordna_put(store, text("k"), (ordna_slice){(uint8_t *)large, 70000}) ==
        ORDNA_STATUS_MEMORY_LIMIT);
  free(large);
  CHECK(ordna_put(store, (ordna_slice){NULL, 5}, text("v")) == ORDNA_STATUS_INVALID);
  CHECK(ordna_put(store, (ordna_slice){(uint8_t *)error, SIZE_MAX}, text("v")) ==
        ORDNA_STATUS_TOO_LONG);
  CHECK(ordna_put(NULL, text("k"), text("v")) == ORDNA_STATUS_INVALID);
  CHECK(ordna_scan(store, NULL, NULL, NULL) == ORDNA_STATUS_INVALID);
  ordna_range range = {.lower_bound = 9};
  struct seen seen = {"", 0, NULL};
  CHECK(ordna_scan(store, &range, collect, &seen) == ORDNA_STATUS_INVALID);
  CHECK(ordna_snapshot_take(store, NULL) == ORDNA_STATUS_INVALID);
  CHECK(ordna_write(store, NULL) == ORDNA_STATUS_INVALID);
  CHECK(ordna_len(store) == 0 && ordna_len(NULL) == 0 && ordna_snapshot_len(NULL) == 0);
  CHECK(ordna_batch_put(NULL, text("k"), text("v")) == ORDNA_STATUS_INVALID);
  CHECK(ordna_batch_len(NULL) == 0 && ordna_memory(NULL) == 0 && ordna_error(NULL, error, 9) == 0);
  ordna_free(store);
  ordna_free(NULL);
  ordna_snapshot_free(NULL);
  ordna_batch_free(NULL);
}

static int sum(void *context, ordna_slice key, ordna_slice value) {
  (void)key;
  *(unsigned *)context += value.data[0] - '0';
  return 0;
}

static void transactions(void) {
  ordna_store *store;
  ordna_transaction *one, *other;
  uint8_t buffer[8];
  size_t length;
  unsigned total = 0;
  uint64_t left = 0;
  CHECK(ordna_new(0, &store) == 0 && ordna_put(store, text("a"), text("1")) == 0);
  CHECK(ordna_begin(store, &one) == 0 && ordna_begin(store, &other) == 0);
  CHECK(ordna_transaction_get(one, text("a"), buffer, 8, &length) == 0 && length == 1);
  CHECK(ordna_transaction_get(other, text("b"), buffer, 8, &length) == ORDNA_STATUS_NOT_FOUND);
  CHECK(ordna_transaction_put(one, text("b"), text("2")) == 0);
  CHECK(ordna_transaction_put_for(one, text("c"), text("3"), 60000) == 0);
  CHECK(ordna_transaction_scan(one, NULL, sum, &total) == 0 && total == 6);
  CHECK(ordna_transaction_put(other, text("d"), text("4")) == 0);
  CHECK(ordna_len(store) == 1 && ordna_transaction_commit(one) == 0 && ordna_len(store) == 3);
  CHECK(ordna_transaction_commit(other) == ORDNA_STATUS_CONFLICT && ordna_len(store) == 3);
  CHECK(ordna_transaction_error(other, (char *)buffer, 8) > 8 && buffer[0] == 't');
  CHECK(ordna_transaction_commit(other) == ORDNA_STATUS_INVALID);
  CHECK(ordna_transaction_put(one, text("d"), text("4")) == ORDNA_STATUS_INVALID);
  ordna_transaction_free(one);
  ordna_transaction_free(other);
  // A transaction that is not committed changes nothing.
  CHECK(ordna_begin(store, &one) == 0);
  CHECK(ordna_transaction_remove(one, text("a")) == 0);
  CHECK(ordna_transaction_remove(one, text("a")) == ORDNA_STATUS_NOT_FOUND);
  ordna_transaction_free(one);
  CHECK(ordna_get(store, text("a"), buffer, 8, &length) == 0);
  CHECK(ordna_begin(store, NULL) == ORDNA_STATUS_INVALID);
  CHECK(ordna_begin(NULL, &one) == ORDNA_STATUS_INVALID && one == NULL);
  CHECK(ordna_transaction_commit(NULL) == ORDNA_STATUS_INVALID);
  ordna_transaction_free(NULL);
  // Expiry.
  CHECK(ordna_expires_in(store, text("a"), &left) == 0 && left == UINT64_MAX);
  CHECK(ordna_expires_in(store, text("c"), &left) == 0 && left <= 60000 && left > 50000);
  CHECK(ordna_expires_in(store, text("x"), &left) == ORDNA_STATUS_NOT_FOUND);
  CHECK(ordna_expires_in(store, text("a"), NULL) == ORDNA_STATUS_INVALID);
  CHECK(ordna_expire(store, text("x"), 5) == ORDNA_STATUS_NOT_FOUND);
  CHECK(ordna_expire(store, text("c"), UINT64_MAX) == 0);
  CHECK(ordna_expires_in(store, text("c"), &left) == 0 && left == UINT64_MAX);
  CHECK(ordna_put_for(store, text("c"), text("3"), 0) == 0);
  CHECK(ordna_get(store, text("c"), buffer, 8, &length) == ORDNA_STATUS_NOT_FOUND);
  ordna_free(store);
}

static void batches(void) {
  ordna_store *store;
  ordna_batch *batch;
  CHECK(ordna_new(100000, &store) == 0 && ordna_batch_new(&batch) == 0);
  CHECK(ordna_put(store, text("old"), text("1")) == 0);
  CHECK(ordna_batch_put(batch, text("new"), text("2")) == 0);
  CHECK(ordna_batch_remove(batch, text("old")) == 0 && ordna_batch_len(batch) == 2);
  CHECK(ordna_write(store, batch) == 0 && ordna_batch_len(batch) == 0);
  CHECK(ordna_len(store) == 1 && ordna_get(store, text("old"), NULL, 0, NULL) == 1);
  char *large = calloc(1, 200000);
  CHECK(ordna_batch_put(batch, text("a"), text("1")) == 0);
  CHECK(ordna_batch_put(batch, text("b"), (ordna_slice){(uint8_t *)large, 200000}) == 0);
  free(large);
  CHECK(ordna_write(store, batch) == ORDNA_STATUS_MEMORY_LIMIT);
  CHECK(ordna_len(store) == 1 && ordna_batch_len(batch) == 2);
  ordna_batch_free(batch);
  ordna_free(store);
}

static void directories(const char *directory) {
  char where[512], copy[512], error[512] = "";
  snprintf(where, sizeof where, "%s/store", directory);
  snprintf(copy, sizeof copy, "%s/copy", directory);
  ordna_store *store, *second;
  CHECK(ordna_open(where, ORDNA_SYNC_ALWAYS, 0, &store, error, sizeof error) == 0);
  CHECK(ordna_put(store, text("k"), text("v")) == 0);
  CHECK(ordna_open(where, ORDNA_SYNC_ALWAYS, 0, &second, error, sizeof error) ==
        ORDNA_STATUS_IN_USE);
  CHECK(second == NULL && strstr(error, "in use"));
  CHECK(ordna_backup(store, NULL) == 0);
  CHECK(ordna_put(store, text("l"), text("w")) == 0);
  CHECK(ordna_backup(store, copy) == 0 && ordna_backup(store, copy) == ORDNA_STATUS_EXISTS);
  ordna_free(store);
  CHECK(ordna_open(where, ORDNA_SYNC_NEVER, 0, &store, error, sizeof error) == 0);
  CHECK(ordna_len(store) == 2);
  ordna_free(store);
  CHECK(ordna_restore(copy, 0, &store, error, sizeof error) == 0 && ordna_len(store) == 2);
  CHECK(ordna_backup(store, NULL) == ORDNA_STATUS_INVALID);
  ordna_free(store);
  CHECK(ordna_open(NULL, 0, 0, &store, error, sizeof error) == ORDNA_STATUS_INVALID);
  CHECK(ordna_open(where, 7, 0, &store, NULL, 0) == ORDNA_STATUS_INVALID);
  CHECK(ordna_restore("/nosuch/backup", 0, &store, error, sizeof error) == ORDNA_STATUS_IO);
}

enum { WRITERS = 2, NUMBERS = 4000 };

struct work {
  ordna_store *store;
  int number;
};

static void cursors(const char *dir) {
  ordna_store *store;
  ordna_cursor *cursor, *other;
  ordna_snapshot *snapshot;
  ordna_slice key, value;
  char path[4096], name[16], version[32];
  snprintf(version, sizeof version, "%d.%d.%d", ORDNA_VERSION_MAJOR, ORDNA_VERSION_MINOR,
           ORDNA_VERSION_PATCH);
  CHECK(strcmp(version, ordna_version()) == 0);
  snprintf(path, sizeof path, "%s/cursors", dir);
  CHECK(ordna_open(path, ORDNA_SYNC_NEVER, 0, &store, NULL, 0) == 0);
  CHECK(ordna_cursor_open(store, &cursor) == 0);
  CHECK(ordna_cursor_next(cursor, &key, &value) == ORDNA_STATUS_NOT_FOUND);
  CHECK(ordna_cursor_prev(cursor, &key, &value) == ORDNA_STATUS_NOT_FOUND);
  ordna_cursor_free(cursor);
  /* More entries than are read ahead at once. */
  for (int i = 0; i < 3000; i += 2) {
    snprintf(name, sizeof name, "%04d", i);
    CHECK(ordna_put(store, text(name), text(name)) == 0);
  }
  CHECK(ordna_sync(store) == 0);
  CHECK(ordna_cursor_open(store, &cursor) == 0);
  CHECK(ordna_put(store, text("0001"), text("later")) == 0);
  for (int turn = 0; turn < 2; turn++) {
    for (int i = 0; i < 3000; i += 2) {
      snprintf(name, sizeof name, "%04d", i);
      CHECK(ordna_cursor_next(cursor, &key, &value) == 0 && is(key, name) && is(value, name));
    }
    CHECK(ordna_cursor_next(cursor, &key, &value) == ORDNA_STATUS_NOT_FOUND);
    for (int i = 2998; i >= 0; i -= 2) {
      snprintf(name, sizeof name, "%04d", i);
      CHECK(ordna_cursor_prev(cursor, &key, NULL) == 0 && is(key, name));
    }
    CHECK(ordna_cursor_prev(cursor, &key, &value) == ORDNA_STATUS_NOT_FOUND);
  }
  /* Ceiling and floor, in both directions from one place. */
  CHECK(ordna_cursor_seek(cursor, text("0101"), false) == 0);
  CHECK(ordna_cursor_next(cursor, &key, &value) == 0 && is(key, "0102"));
  CHECK(ordna_cursor_prev(cursor, &key, &value) == 0 && is(key, "0102"));
  CHECK(ordna_cursor_prev(cursor, &key, &value) == 0 && is(key, "0100"));
  CHECK(ordna_cursor_seek(cursor, text("0100"), true) == 0);
  CHECK(ordna_cursor_prev(cursor, &key, &value) == 0 && is(key, "0100"));
  CHECK(ordna_cursor_seek(cursor, text("0100"), true) == 0);
  CHECK(ordna_cursor_next(cursor, &key, &value) == 0 && is(key, "0102"));
  CHECK(ordna_cursor_seek(cursor, text("0100"), false) == 0);
  CHECK(ordna_cursor_prev(cursor, &key, &value) == 0 && is(key, "0098"));
  CHECK(ordna_cursor_end(cursor) == 0);
  CHECK(ordna_cursor_prev(cursor, &key, &value) == 0 && is(key, "2998"));
  CHECK(ordna_cursor_start(cursor) == 0);
  CHECK(ordna_cursor_next(cursor, &key, &value) == 0 && is(key, "0000"));
  CHECK(ordna_cursor_select(cursor, 1499) == 0);
  CHECK(ordna_cursor_next(cursor, &key, &value) == 0 && is(key, "2998"));
  CHECK(ordna_cursor_select(cursor, 1500) == ORDNA_STATUS_NOT_FOUND);
  CHECK(ordna_cursor_next(cursor, &key, &value) == ORDNA_STATUS_NOT_FOUND);
  /* Ranks, also at a snapshot. */
  size_t count = 0;
  ordna_range below = {.upper = text("0100"), .upper_bound = ORDNA_BOUND_EXCLUDED};
  CHECK(ordna_count(store, &below, &count) == 0 && count == 51);
  CHECK(ordna_count(store, NULL, &count) == 0 && count == 1501);
  CHECK(ordna_snapshot_take(store, &snapshot) == 0);
  CHECK(ordna_remove(store, text("0001")) == 0);
  CHECK(ordna_snapshot_count(snapshot, &below, &count) == 0 && count == 51);
  CHECK(ordna_snapshot_cursor(snapshot, &other) == 0);
  ordna_snapshot_free(snapshot);
  CHECK(ordna_cursor_seek(other, text("0001"), false) == 0);
  CHECK(ordna_cursor_next(other, &key, &value) == 0 && is(key, "0001") && is(value, "later"));
  /* Bad input. */
  char error[80];
  CHECK(ordna_cursor_seek(other, (ordna_slice){NULL, 3}, false) == ORDNA_STATUS_INVALID);
  CHECK(ordna_cursor_error(other, error, sizeof error) > 0 && strstr(error, "no data"));
  CHECK(ordna_cursor_next(other, NULL, NULL) == 0);
  CHECK(ordna_cursor_open(store, NULL) == ORDNA_STATUS_INVALID);
  ordna_cursor_free(cursor);
  CHECK(ordna_cursor_open(NULL, &cursor) == ORDNA_STATUS_INVALID && cursor == NULL);
  CHECK(ordna_cursor_next(NULL, &key, &value) == ORDNA_STATUS_INVALID);
  CHECK(ordna_count(store, NULL, NULL) == ORDNA_STATUS_INVALID);
  /* A cursor outlives its store. */
  ordna_free(store);
  CHECK(ordna_cursor_start(other) == 0);
  CHECK(ordna_cursor_next(other, &key, &value) == 0 && is(key, "0000"));
  ordna_cursor_free(other);
  ordna_cursor_free(NULL);
}

static void *write_numbers(void *argument) {
  struct work *work = argument;
  for (int i = 0; i < NUMBERS; i++) {
    char key[32];
    snprintf(key, sizeof key, "%d:%05d", work->number, i);
    CHECK(ordna_put(work->store, text(key), text("v")) == 0);
    if (i % 3 == 0) CHECK(ordna_remove(work->store, text(key)) == 0);
    /* Errors of two threads on one handle do not disturb each other's memory. */
    if (i % 5 == 0) CHECK(ordna_put(work->store, (ordna_slice){NULL, 1}, text("v")) < 0);
  }
  return NULL;
}

static int count(void *context, ordna_slice key, ordna_slice value) {
  (void)key, (void)value;
  ++*(size_t *)context;
  return 0;
}

static void threads(void) {
  ordna_store *store;
  CHECK(ordna_new(0, &store) == 0);
  pthread_t threads[WRITERS];
  struct work work[WRITERS];
  for (int i = 0; i < WRITERS; i++) {
    work[i] = (struct work){store, i};
    CHECK(pthread_create(&threads[i], NULL, write_numbers, &work[i]) == 0);
  }
  for (int round = 0; round < 50; round++) {
    ordna_snapshot *moment;
    CHECK(ordna_snapshot_take(store, &moment) == 0);
    size_t first = 0, again = 0;
    char error[64];
    ordna_error(store, error, sizeof error);
    CHECK(ordna_snapshot_scan(moment, NULL, count, &first) == 0);
    CHECK(ordna_snapshot_scan(moment, NULL, count, &again) == 0);
    CHECK(first == again && first == ordna_snapshot_len(moment));
    ordna_snapshot_free(moment);
  }
  for (int i = 0; i < WRITERS; i++) pthread_join(threads[i], NULL);
  size_t all = 0;
  CHECK(ordna_scan(store, NULL, count, &all) == 0);
  CHECK(all == WRITERS * (NUMBERS - (NUMBERS + 2) / 3) && all == ordna_len(store));
  ordna_free(store);
}

static int size_of_value(void *context, ordna_slice key, ordna_slice value) {
  (void)key;
  *(size_t *)context += value.len;
  return 0;
}

static void large_values(void) {
  ordna_store *store;
  CHECK(ordna_new(0, &store) == 0);
  size_t length = 1 << 20, seen = 0;
  uint8_t *value = calloc(1, length);
  for (uint8_t i = 0; i < 40; i++) {
    CHECK(ordna_put(store, (ordna_slice){&i, 1}, (ordna_slice){value, length}) == 0);
  }
  /* Chunks end at a number of bytes, and the scan continues after each of them. */
  CHECK(ordna_scan(store, NULL, size_of_value, &seen) == 0 && seen == 40 * length);
  ordna_range some = {.reverse = true, .limit = 30};
  seen = 0;
  CHECK(ordna_scan(store, &some, size_of_value, &seen) == 0 && seen == 30 * length);
  free(value);
  ordna_free(store);
}

struct values {
  ordna_store *store;
  size_t next, absent, bytes, stop_at;
};

static int check_value(void *context, size_t position, const ordna_slice *value) {
  struct values *values = context;
  char want[32];
  CHECK(position == values->next++);
  snprintf(want, sizeof want, "%05zu", position);
  if (value) {
    CHECK(value->len >= 5 && memcmp(value->data, want, 5) == 0);
    values->bytes += value->len;
  } else {
    values->absent++;
  }
  /* A callback may use the store. */
  CHECK(ordna_put(values->store, text("seen"), text(want)) == 0);
  return values->next == values->stop_at;
}

static void many(void) {
  enum { KEYS = 1000, LARGE = 100000 };
  static char names[KEYS][16];
  static ordna_slice keys[KEYS];
  ordna_store *store;
  ordna_snapshot *moment;
  ordna_transaction *tx;
  CHECK(ordna_new(0, &store) == 0);
  char *large = malloc(LARGE);
  memset(large, 'x', LARGE);
  size_t bytes = 0, present = 0;
  for (int i = 0; i < KEYS; i++) {
    snprintf(names[i], sizeof names[i], "%05d", i);
    keys[i] = text(names[i]);
    if (i % 3 == 0) continue;
    /* More keys than are read ahead at once, by number and by bytes. */
    memcpy(large, names[i], 5);
    size_t length = i < 20 ? LARGE : 5;
    CHECK(ordna_put(store, keys[i], (ordna_slice){(uint8_t *)large, length}) == 0);
    bytes += length;
    present++;
  }
  free(large);
  struct values seen = {store, 0, 0, 0, 0};
  CHECK(ordna_get_many(store, keys, KEYS, check_value, &seen) == 0);
  CHECK(seen.next == KEYS && seen.absent == KEYS - present && seen.bytes == bytes);
  CHECK(ordna_snapshot_take(store, &moment) == 0 && ordna_begin(store, &tx) == 0);
  CHECK(ordna_remove_range(store, NULL, NULL) == 0);
  CHECK(ordna_transaction_put(tx, keys[0], text("00000")) == 0);
  seen = (struct values){store, 0, 0, 0, 0};
  CHECK(ordna_snapshot_get_many(moment, keys, KEYS, check_value, &seen) == 0);
  CHECK(seen.next == KEYS && seen.absent == KEYS - present && seen.bytes == bytes);
  seen = (struct values){store, 0, 0, 0, 0};
  CHECK(ordna_transaction_get_many(tx, keys, KEYS, check_value, &seen) == 0);
  CHECK(seen.next == KEYS && seen.absent == KEYS - present - 1 && seen.bytes == bytes + 5);
  CHECK(ordna_transaction_commit(tx) == ORDNA_STATUS_CONFLICT);
  seen = (struct values){store, 0, 0, 0, 7};
  CHECK(ordna_get_many(store, keys, KEYS, check_value, &seen) == ORDNA_STATUS_STOPPED);
  CHECK(seen.next == 7 && seen.absent == 7);
  CHECK(ordna_get_many(store, NULL, 0, check_value, &seen) == 0 && seen.next == 7);
  CHECK(ordna_get_many(store, NULL, 1, check_value, &seen) == ORDNA_STATUS_INVALID);
  CHECK(ordna_get_many(store, keys, SIZE_MAX, check_value, &seen) == ORDNA_STATUS_INVALID);
  CHECK(ordna_get_many(store, keys, KEYS, NULL, &seen) == ORDNA_STATUS_INVALID);
  keys[999] = (ordna_slice){NULL, 1};
  CHECK(ordna_get_many(store, keys, KEYS, check_value, &seen) == ORDNA_STATUS_INVALID);
  CHECK(ordna_get_many(NULL, keys, 1, check_value, &seen) == ORDNA_STATUS_INVALID && seen.next == 7);
  ordna_transaction_free(tx);
  ordna_snapshot_free(moment);
  ordna_free(store);
}

struct decision {
  ordna_store *store;
  int change, calls, disturbs;
  char next[16];
};

/* Appends a byte to the value, or makes the change that the context requests. */
static int decide(void *context, const ordna_slice *value, ordna_slice *next) {
  struct decision *decision = context;
  decision->calls++;
  CHECK(next->len == 0);
  int length = snprintf(decision->next, sizeof decision->next, "%.*sx", value ? (int)value->len : 0,
                        value ? (const char *)value->data : "");
  *next = (ordna_slice){(const uint8_t *)decision->next, (size_t)length};
  /* Writes the key between the read and the change. */
  if (decision->disturbs-- > 0) {
    char other[16];
    snprintf(other, sizeof other, "%d", decision->calls);
    CHECK(ordna_put(decision->store, text("k"), text(other)) == 0);
  }
  return decision->change;
}

static int increment(void *room, const ordna_slice *value, ordna_slice *next) {
  uint64_t count = 0;
  if (value) memcpy(&count, value->data, sizeof count);
  count++;
  memcpy(room, &count, sizeof count);
  *next = (ordna_slice){room, sizeof count};
  return ORDNA_CHANGE_PUT;
}

static void *increments(void *store) {
  uint8_t room[8];
  for (int i = 0; i < NUMBERS; i++) CHECK(ordna_modify(store, text("n"), increment, room) == 0);
  return NULL;
}

static void modifications(void) {
  ordna_store *store;
  uint8_t buffer[16];
  size_t length;
  uint64_t left = 0;
  char error[128];
  CHECK(ordna_new(0, &store) == 0);
  struct decision keep = {store, ORDNA_CHANGE_KEEP, 0, 0, ""};
  struct decision put = {store, ORDNA_CHANGE_PUT, 0, 0, ""};
  struct decision removal = {store, ORDNA_CHANGE_REMOVE, 0, 0, ""};
  CHECK(ordna_modify(store, text("k"), decide, &keep) == 0 && ordna_len(store) == 0);
  CHECK(ordna_modify(store, text("k"), decide, &removal) == 0 && ordna_len(store) == 0);
  CHECK(ordna_modify(store, text("k"), decide, &put) == 0);
  CHECK(ordna_modify(store, text("k"), decide, &put) == 0 && put.calls == 2);
  CHECK(ordna_get(store, text("k"), buffer, 16, &length) == 0 && length == 2 && buffer[1] == 'x');
  /* The deadline does not change. */
  CHECK(ordna_expire(store, text("k"), 60000) == 0);
  CHECK(ordna_modify(store, text("k"), decide, &put) == 0);
  CHECK(ordna_expires_in(store, text("k"), &left) == 0 && left <= 60000 && left > 50000);
  /* The callback is called again with the new value, up to 100 times. */
  put = (struct decision){store, ORDNA_CHANGE_PUT, 0, 3, ""};
  CHECK(ordna_modify(store, text("k"), decide, &put) == 0 && put.calls == 4);
  CHECK(ordna_get(store, text("k"), buffer, 16, &length) == 0 && length == 2);
  CHECK(memcmp(buffer, "3x", 2) == 0);
  put = (struct decision){store, ORDNA_CHANGE_PUT, 0, 1000, ""};
  CHECK(ordna_modify(store, text("k"), decide, &put) == ORDNA_STATUS_CONFLICT && put.calls == 100);
  CHECK(ordna_error(store, error, sizeof error) > 0 && strstr(error, "changed by others"));
  CHECK(ordna_get(store, text("k"), buffer, 16, &length) == 0 && length == 3);
  CHECK(memcmp(buffer, "100", 3) == 0);
  /* Calls that change nothing. */
  struct decision ends = {store, -1, 0, 0, ""}, wrong = {store, 3, 0, 0, ""};
  CHECK(ordna_modify(store, text("k"), decide, &ends) == ORDNA_STATUS_STOPPED && ends.calls == 1);
  CHECK(ordna_modify(store, text("k"), decide, &wrong) == ORDNA_STATUS_INVALID && wrong.calls == 1);
  CHECK(ordna_modify(store, text("k"), NULL, NULL) == ORDNA_STATUS_INVALID);
  CHECK(ordna_modify(NULL, text("k"), decide, &keep) == ORDNA_STATUS_INVALID);
  static const uint8_t zeros[70000];
  ordna_slice too_long = {zeros, sizeof zeros};
  put.disturbs = 0;
  CHECK(ordna_modify(store, too_long, decide, &put) == ORDNA_STATUS_TOO_LONG);
  CHECK(ordna_modify(store, too_long, decide, &removal) == 0);
  CHECK(ordna_get(store, text("k"), buffer, 16, &length) == 0 && length == 3);
  CHECK(ordna_modify(store, text("k"), decide, &removal) == 0 && ordna_len(store) == 0);
  /* No increment is lost. */
  pthread_t threads[WRITERS];
  for (int i = 0; i < WRITERS; i++) CHECK(pthread_create(&threads[i], NULL, increments, store) == 0);
  for (int i = 0; i < WRITERS; i++) pthread_join(threads[i], NULL);
  uint64_t count = 0;
  CHECK(ordna_get(store, text("n"), (uint8_t *)&count, sizeof count, NULL) == 0);
  CHECK(count == WRITERS * NUMBERS);
  ordna_free(store);
}

static void prefixes_and_statistics(void) {
  ordna_store *store;
  ordna_snapshot *moment;
  ordna_statistics of;
  size_t count = 0;
  CHECK(ordna_new(1 << 20, &store) == 0);
  const char *keys[] = {"a", "ab", "abc", "b", "\xFF", "\xFF\xFF"};
  for (int i = 0; i < 6; i++) CHECK(ordna_put(store, text(keys[i]), text("v")) == 0);
  CHECK(ordna_put_for(store, text("gone"), text("v"), 60000) == 0);
  CHECK(ordna_snapshot_take(store, &moment) == 0);
  CHECK(ordna_count_prefix(store, text("ab"), &count) == 0 && count == 2);
  CHECK(ordna_count_prefix(store, text("\xFF"), &count) == 0 && count == 2);
  CHECK(ordna_count_prefix(store, text(""), &count) == 0 && count == 7);
  CHECK(ordna_remove_prefix(store, text("ab"), &count) == 0 && count == 2);
  CHECK(ordna_remove_prefix(store, text("\xFF\xFF"), NULL) == 0);
  CHECK(ordna_remove_prefix(store, text("nothing"), &count) == 0 && count == 0);
  CHECK(ordna_count_prefix(store, text(""), &count) == 0 && count == 4);
  CHECK(ordna_snapshot_count_prefix(moment, text("ab"), &count) == 0 && count == 2);
  CHECK(ordna_statistics_of(store, &of) == 0);
  CHECK(of.keys == 4 && of.old_states == 3 && of.bytes > 0 && of.memory_limit == 1 << 20);
  CHECK(of.snapshots == 1 && of.oldest_snapshot < 60000 && of.scans == 0);
  CHECK(of.expiring == 1 && of.expired == 0);
  ordna_snapshot_free(moment);
  CHECK(ordna_statistics_of(store, &of) == 0 && of.snapshots == 0 && of.oldest_snapshot == 0);
  CHECK(ordna_statistics_of(store, NULL) == ORDNA_STATUS_INVALID);
  CHECK(ordna_statistics_of(NULL, &of) == ORDNA_STATUS_INVALID);
  CHECK(ordna_count_prefix(store, text("a"), NULL) == ORDNA_STATUS_INVALID);
  CHECK(ordna_count_prefix(store, (ordna_slice){NULL, 1}, &count) == ORDNA_STATUS_INVALID);
  CHECK(ordna_remove_prefix(store, (ordna_slice){NULL, 1}, &count) == ORDNA_STATUS_INVALID);
  CHECK(ordna_remove_prefix(store, text(""), &count) == 0 && count == 4 && ordna_len(store) == 0);
  ordna_free(store);
}

static void *fails(void *store) {
  char error[80];
  CHECK(ordna_put(store, (ordna_slice){NULL, 3}, text("v")) == ORDNA_STATUS_INVALID);
  ordna_error(store, error, sizeof error);
  CHECK(strstr(error, "no data"));
  return NULL;
}

/* Checks that the text of an error is that of the calling thread and of the handle. */
static void errors_of_threads(void) {
  ordna_store *store, *other, *third;
  CHECK(ordna_new(0, &store) == 0 && ordna_new(0, &other) == 0);
  char error[80] = "old";
  CHECK(ordna_backup(store, NULL) == ORDNA_STATUS_INVALID);
  size_t length = ordna_error(store, error, sizeof error);
  CHECK(length > 0 && strstr(error, "directory"));
  pthread_t thread;
  CHECK(pthread_create(&thread, NULL, fails, store) == 0 && pthread_join(thread, NULL) == 0);
  CHECK(ordna_error(store, error, sizeof error) == length && strstr(error, "directory"));
  CHECK(ordna_error(other, error, sizeof error) == 0 && error[0] == 0);
  /* Or that of the thread, for any handle. */
  CHECK(ordna_last_error(error, sizeof error) == length && strstr(error, "directory"));
  CHECK(ordna_last_error(NULL, 0) == length);
  ordna_cursor *cursor;
  CHECK(ordna_cursor_open(other, &cursor) == 0);
  CHECK(ordna_cursor_seek(cursor, (ordna_slice){NULL, 3}, false) == ORDNA_STATUS_INVALID);
  CHECK(ordna_last_error(error, sizeof error) > 0 && strstr(error, "no data"));
  CHECK(ordna_error(store, error, sizeof error) == 0);
  ordna_cursor_free(cursor);
  CHECK(ordna_remove(NULL, text("a")) == ORDNA_STATUS_INVALID);
  CHECK(ordna_last_error(error, sizeof error) > 0 && strstr(error, "handle is null"));
  CHECK(ordna_restore("/nosuch/backup", 0, &third, NULL, 0) == ORDNA_STATUS_IO);
  CHECK(ordna_last_error(error, sizeof error) > 0 && strstr(error, "nosuch"));
  ordna_free(store);
  ordna_free(other);
}

/* Waits for a child, which must end by itself within a time. */
static void ended(pid_t child) {
  for (int i = 0; i < 600; i++) {
    int status;
    pid_t done = waitpid(child, &status, WNOHANG);
    CHECK(done >= 0);
    if (done == child) {
      CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
      return;
    }
    nanosleep(&(struct timespec){0, 50 * 1000 * 1000}, NULL);
  }
  kill(child, SIGKILL);
  CHECK(!"the child ends");
}

static void forks(const char *dir) {
  for (int sync = ORDNA_SYNC_ALWAYS; sync <= ORDNA_SYNC_NEVER; sync++) {
    char path[4096];
    snprintf(path, sizeof path, "%s/fork-%d", dir, sync);
    ordna_store *store, *again;
    ordna_snapshot *moment, *child_moment = (void *)1;
    CHECK(ordna_open(path, sync, 0, &store, NULL, 0) == 0);
    CHECK(ordna_put(store, text("a"), text("1")) == 0 && ordna_snapshot_take(store, &moment) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
      char error[80];
      uint8_t buffer[4];
      size_t seen = 0;
      ordna_batch *batch;
      CHECK(ordna_put(store, text("b"), text("2")) == ORDNA_STATUS_FORKED);
      CHECK(ordna_error(store, error, sizeof error) > 0 && strstr(error, "forked this one"));
      CHECK(ordna_get(store, text("a"), buffer, 4, NULL) == ORDNA_STATUS_FORKED);
      CHECK(ordna_remove(store, text("a")) == ORDNA_STATUS_FORKED);
      CHECK(ordna_remove_prefix(store, text("a"), NULL) == ORDNA_STATUS_FORKED);
      CHECK(ordna_modify(store, text("a"), increment, buffer) == ORDNA_STATUS_FORKED);
      CHECK(ordna_scan(store, NULL, size_of_value, &seen) == ORDNA_STATUS_FORKED && seen == 0);
      CHECK(ordna_snapshot_scan(moment, NULL, size_of_value, &seen) == ORDNA_STATUS_FORKED);
      CHECK(ordna_backup(store, NULL) == ORDNA_STATUS_FORKED && ordna_memory(store) == 0);
      CHECK(ordna_len(store) == 0 && ordna_snapshot_len(moment) == 0);
      CHECK(ordna_snapshot_take(store, &child_moment) == ORDNA_STATUS_FORKED && !child_moment);
      CHECK(ordna_batch_new(&batch) == 0 && ordna_batch_put(batch, text("b"), text("2")) == 0);
      CHECK(ordna_write(store, batch) == ORDNA_STATUS_FORKED && ordna_batch_len(batch) == 1);
      ordna_batch_free(batch);
      ordna_snapshot_free(moment);
      ordna_free(store);
      /* The parent still uses the directory. */
      CHECK(ordna_open(path, sync, 0, &again, NULL, 0) == ORDNA_STATUS_IN_USE);
      CHECK(ordna_new(0, &again) == 0 && ordna_put(again, text("b"), text("2")) == 0);
      ordna_free(again);
      _exit(0);
    }
    ended(child);
    CHECK(ordna_put(store, text("c"), text("3")) == 0);
    /* A child that is alive does not keep the directory in use. */
    child = fork();
    if (child == 0) {
      for (;;) pause();
    }
    ordna_free(store);
    CHECK(ordna_open(path, sync, 0, &again, NULL, 0) == 0 && ordna_len(again) == 2);
    ordna_free(again);
    ordna_snapshot_free(moment);
    kill(child, SIGKILL);
    CHECK(waitpid(child, NULL, 0) == child);
  }
}

int main(int argc, char **argv) {
  CHECK(argc == 2);
  points();
  cursors(argv[1]);
  ranges();
  long_scans();
  bad_input();
  batches();
  transactions();
  directories(argv[1]);
  large_values();
  many();
  modifications();
  prefixes_and_statistics();
  errors_of_threads();
  forks(argv[1]);
  threads();
  puts("C: all passed");
  return 0;
}
