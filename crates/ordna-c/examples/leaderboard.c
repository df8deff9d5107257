/* A leaderboard that is exact although threads change scores at once: points by player, and players by
 * points, changed together by transactions; and a counter of games that needs none. Run without
 * arguments.
 *
 * Keys: "points/NAME", value: the points. "order/" + the complement of the points in big-endian order +
 * NAME: the most points come first.
 */
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ordna.h"

enum { PLAYERS = 4, THREADS = 3, GAMES = 400, NAME = 32 };

static const char *const players[PLAYERS] = {"Ada", "Barbara", "Edsger", "Grace"};

static ordna_slice text(const char *bytes) {
  return (ordna_slice){(const uint8_t *)bytes, strlen(bytes)};
}

static void must(int status) {
  if (status >= 0) return;
  char error[256];
  ordna_last_error(error, sizeof error);
  fprintf(stderr, "leaderboard: %s\n", error);
  exit(1);
}

static void expect(int condition, const char *what) {
  if (condition) return;
  fprintf(stderr, "leaderboard: expected %s\n", what);
  exit(1);
}

/* In this form, numbers are ordered like their bytes. */
static void put_number(uint8_t *bytes, uint64_t number) {
  for (int i = 7; i >= 0; i--, number >>= 8) bytes[i] = (uint8_t)number;
}

static uint64_t number_of(const uint8_t *bytes) {
  uint64_t number = 0;
  for (int i = 0; i < 8; i++) number = number << 8 | bytes[i];
  return number;
}

struct key {
  uint8_t bytes[6 + 8 + NAME];
  size_t length;
};

static ordna_slice slice(const struct key *key) { return (ordna_slice){key->bytes, key->length}; }

static struct key order_key(uint64_t points, const char *player) {
  struct key key = {.bytes = "order/"};
  size_t name = strlen(player);
  expect(name <= NAME, "a short name");
  put_number(key.bytes + 6, ~points);
  memcpy(key.bytes + 14, player, name);
  key.length = 14 + name;
  return key;
}

static struct key points_key(const char *player) {
  struct key key;
  key.length = (size_t)snprintf((char *)key.bytes, sizeof key.bytes, "points/%.*s", NAME, player);
  return key;
}

/* Tries once to add points. Returns OK, CONFLICT, or an error. */
static int try_score(ordna_store *board, const char *player, uint64_t more) {
  ordna_transaction *tx;
  int status = ordna_begin(board, &tx);
  if (status != ORDNA_STATUS_OK) return status;
  struct key points = points_key(player);
  uint8_t value[8];
  uint64_t before = 0;
  status = ordna_transaction_get(tx, slice(&points), value, sizeof value, NULL);
  if (status == ORDNA_STATUS_OK) {
    before = number_of(value);
    struct key old = order_key(before, player);
    status = ordna_transaction_remove(tx, slice(&old));
  }
  if (status >= 0) {
    struct key new = order_key(before + more, player);
    status = ordna_transaction_put(tx, slice(&new), (ordna_slice){NULL, 0});
  }
  if (status >= 0) {
    put_number(value, before + more);
    status = ordna_transaction_put(tx, slice(&points), (ordna_slice){value, sizeof value});
  }
  if (status >= 0) status = ordna_transaction_commit(tx);
  ordna_transaction_free(tx);
  return status;
}

static void score(ordna_store *board, const char *player, uint64_t more) {
  int status;
  /* Each conflict means that another thread has committed. */
  do status = try_score(board, player, more);
  while (status == ORDNA_STATUS_CONFLICT);
  must(status);
}

/* Counts a game. A change of one key needs no transaction. */
static int one_more(void *room, const ordna_slice *value, ordna_slice *next) {
  put_number(room, value ? number_of(value->data) + 1 : 1);
  *next = (ordna_slice){room, 8};
  return ORDNA_CHANGE_PUT;
}

static void *play(void *argument) {
  ordna_store *board = argument;
  for (int game = 0; game < GAMES; game++) {
    uint8_t room[8];
    score(board, players[game % PLAYERS], (uint64_t)(game % PLAYERS));
    must(ordna_modify(board, text("games"), one_more, room));
  }
  return NULL;
}

/* Returns the place of a player, counted from 1. Both reads see the same state. */
static size_t place(ordna_store *board, const char *player) {
  ordna_snapshot *now;
  must(ordna_snapshot_take(board, &now));
  struct key points = points_key(player);
  uint8_t value[8];
  size_t above = 0;
  int status = ordna_snapshot_get(now, slice(&points), value, sizeof value, NULL);
  expect(status == ORDNA_STATUS_OK, "a player with points");
  struct key own = order_key(number_of(value), player);
  ordna_range better = {.lower = text("order/"), .lower_bound = ORDNA_BOUND_INCLUDED,
                        .upper = slice(&own), .upper_bound = ORDNA_BOUND_EXCLUDED};
  expect(ordna_snapshot_count(now, &better, &above) == ORDNA_STATUS_OK, "a count");
  ordna_snapshot_free(now);
  return above + 1;
}

static int show(void *context, ordna_slice key, ordna_slice value) {
  (void)context, (void)value;
  printf("%.*s: %" PRIu64 "\n", (int)key.len - 14, (const char *)key.data + 14,
         ~number_of(key.data + 6));
  return 0;
}

int main(void) {
  ordna_store *board;
  if (ordna_new(0, &board) != ORDNA_STATUS_OK) return 1;
  pthread_t threads[THREADS];
  for (int i = 0; i < THREADS; i++) expect(!pthread_create(&threads[i], NULL, play, board), "a thread");
  for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);

  must(ordna_prefix(board, text("order/"), false, 3, show, NULL));
  size_t lines = 0;
  must(ordna_count_prefix(board, text("order/"), &lines));
  expect(lines == PLAYERS, "one line for each player");
  uint8_t games[8];
  must(ordna_get(board, text("games"), games, sizeof games, NULL));
  printf("Ada is number %zu of %zu after %" PRIu64 " games\n", place(board, "Ada"), lines,
         number_of(games));
  ordna_free(board);
  return 0;
}
