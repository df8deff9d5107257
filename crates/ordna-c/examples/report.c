/* An analytics report next to writers: money moves between accounts, and each report reads one moment,
 * in which the sum is always the same. Run without arguments.
 *
 * Keys: "DK/000000", the country and the account. Values: the amount, as a number of this machine.
 */
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ordna.h"

enum { ACCOUNTS = 3000, WRITERS = 2, REPORTS = 20, AMOUNT = 100, KEY = 16 };

static const char *const countries[] = {"DK", "NO", "SE"};

struct bank {
  ordna_store *accounts;
  atomic_bool ended;
  atomic_uint moves, failed;
};

struct writer {
  struct bank *bank;
  unsigned first;
};

static ordna_slice text(const char *bytes) {
  return (ordna_slice){(const uint8_t *)bytes, strlen(bytes)};
}

static void expect(int condition, const char *what) {
  if (condition) return;
  fprintf(stderr, "report: expected %s\n", what);
  exit(1);
}

static ordna_slice key_of(char (*room)[KEY], unsigned account) {
  snprintf(*room, sizeof *room, "%s/%06u", countries[account % 3], account % 1000000);
  return text(*room);
}

static ordna_slice amount(const int64_t *number) {
  return (ordna_slice){(const uint8_t *)number, sizeof *number};
}

static int move(ordna_store *accounts, ordna_slice from, ordna_slice to) {
  ordna_transaction *tx;
  int status = ordna_begin(accounts, &tx);
  if (status != ORDNA_STATUS_OK) return status;
  int64_t taken = 0, given = 0;
  status = ordna_transaction_get(tx, from, (uint8_t *)&taken, sizeof taken, NULL);
  if (status == 0) status = ordna_transaction_get(tx, to, (uint8_t *)&given, sizeof given, NULL);
  taken -= 5;
  given += 5;
  if (status == 0) status = ordna_transaction_put(tx, from, amount(&taken));
  if (status == 0) status = ordna_transaction_put(tx, to, amount(&given));
  if (status == 0) status = ordna_transaction_commit(tx);
  ordna_transaction_free(tx);
  return status;
}

static void *write_moves(void *argument) {
  struct writer *writer = argument;
  struct bank *bank = writer->bank;
  for (unsigned at = writer->first; !atomic_load(&bank->ended); at += WRITERS) {
    char from[KEY], to[KEY];
    unsigned giver = at * 7 % ACCOUNTS, taker = at * 13 % ACCOUNTS;
    if (giver == taker) continue;
    int status = move(bank->accounts, key_of(&from, giver), key_of(&to, taker));
    /* A move that conflicts with another one is skipped. */
    if (status == 0) atomic_fetch_add(&bank->moves, 1);
    else if (status != ORDNA_STATUS_CONFLICT) atomic_fetch_add(&bank->failed, 1);
  }
  return NULL;
}

struct total {
  int64_t sum;
  size_t accounts;
};

static int add(void *context, ordna_slice key, ordna_slice value) {
  struct total *total = context;
  int64_t number;
  (void)key;
  expect(value.len == sizeof number, "a number");
  memcpy(&number, value.data, sizeof number);
  total->sum += number;
  total->accounts++;
  return 0;
}

static int add_one(void *context, size_t position, const ordna_slice *value) {
  (void)position;
  return value ? add(context, (ordna_slice){NULL, 0}, *value) : 1;
}

/* Computes the sum of all accounts, first by country and then from a list of keys. */
static void report(ordna_store *accounts) {
  ordna_snapshot *now;
  expect(ordna_snapshot_take(accounts, &now) == 0, "a snapshot");
  struct total all = {0, 0}, again = {0, 0};
  for (int i = 0; i < 3; i++) {
    struct total total = {0, 0};
    size_t count = 0;
    expect(ordna_snapshot_prefix(now, text(countries[i]), false, 0, add, &total) == 0, "a scan");
    expect(ordna_snapshot_count_prefix(now, text(countries[i]), &count) == 0, "a count");
    expect(count == total.accounts, "as many accounts as were counted");
    all.sum += total.sum;
    all.accounts += total.accounts;
  }
  static char rooms[ACCOUNTS][KEY];
  static ordna_slice keys[ACCOUNTS];
  for (unsigned i = 0; i < ACCOUNTS; i++) keys[i] = key_of(&rooms[i], i);
  expect(ordna_snapshot_get_many(now, keys, ACCOUNTS, add_one, &again) == 0, "all accounts");
  expect(all.sum == ACCOUNTS * AMOUNT && all.accounts == ACCOUNTS, "the sum of the money");
  expect(again.sum == all.sum && again.accounts == all.accounts, "the same in another way");
  ordna_snapshot_free(now);
}

int main(void) {
  static struct bank bank;
  if (ordna_new(0, &bank.accounts) != ORDNA_STATUS_OK) return 1;
  const int64_t first = AMOUNT;
  for (unsigned i = 0; i < ACCOUNTS; i++) {
    char room[KEY];
    expect(ordna_put(bank.accounts, key_of(&room, i), amount(&first)) == 0, "an account");
  }
  pthread_t threads[WRITERS];
  struct writer writers[WRITERS];
  for (unsigned i = 0; i < WRITERS; i++) {
    writers[i] = (struct writer){&bank, i};
    expect(!pthread_create(&threads[i], NULL, write_moves, &writers[i]), "a thread");
  }
  /* Without moves between the reports, equal sums would prove nothing. */
  while (atomic_load(&bank.moves) == 0 && atomic_load(&bank.failed) == 0) continue;
  for (int i = 0; i < REPORTS; i++) report(bank.accounts);
  atomic_store(&bank.ended, true);
  for (unsigned i = 0; i < WRITERS; i++) pthread_join(threads[i], NULL);
  expect(atomic_load(&bank.failed) == 0, "moves without errors");
  report(bank.accounts);

  ordna_statistics figures;
  expect(ordna_statistics_of(bank.accounts, &figures) == 0, "statistics");
  expect(figures.keys == ACCOUNTS && figures.snapshots == 0, "no snapshot that was left");
  printf("%d reports agree\n", REPORTS + 1);
  ordna_free(bank.accounts);
  return 0;
}
