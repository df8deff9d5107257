// The C++ wrapper: RAII, exceptions, ranges.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

#include "ordna.hpp"

#define CHECK(what)                                                         \
  do {                                                                      \
    if (!(what)) {                                                          \
      std::fprintf(stderr, "%s:%d: failed: %s\n", __FILE__, __LINE__, #what); \
      std::exit(1);                                                         \
    }                                                                       \
  } while (0)

template <typename Entries>
std::vector<std::string> keys(const Entries& entries) {
  std::vector<std::string> keys;
  for (const auto& [key, value] : entries) keys.push_back(key);
  return keys;
}

// Whether `entries` can be called on a value of this type, which must not be a temporary.
template <typename Source, typename = void>
constexpr bool has_entries = false;
template <typename Source>
constexpr bool has_entries<Source, std::void_t<decltype(std::declval<Source>().entries()),
                                               decltype(std::declval<Source>().prefix(""))>> = true;

int main(int argc, char** argv) {
  using Keys = std::vector<std::string>;
  CHECK(argc == 2);
  ordna::Store store;
  CHECK(!store.get("a") && store.size() == 0 && store.entries().begin() == store.entries().end());
  store.put("a", "one");
  store.put("ab", std::string(1000, 'x'));
  store.put("b", "");
  store.put(std::string_view("\0", 1), "zero");
  CHECK(*store.get("a") == "one" && store.get("ab")->size() == 1000 && *store.get("b") == "");
  CHECK(store.contains("b") && !store.contains("c"));
  CHECK((keys(store.prefix("a")) == Keys{"a", "ab"}));
  ordna::Range back;
  back.reverse = true;
  back.limit = 2;
  CHECK((keys(store.entries(back)) == Keys{"b", "ab"}));
  ordna::Range between;
  between.lower = "a";
  between.lower_inclusive = false;
  between.upper = "b";
  CHECK((keys(store.entries(between)) == Keys{"ab", "b"}));
  CHECK(store.compare_and_set("a", "one", "two") && !store.compare_and_set("a", "one", "three"));
  CHECK(store.compare_and_set("new", std::nullopt, "1") && store.remove("new") &&
        !store.remove("new"));

  // Transactions and expiry.
  ordna::Store accounts;
  accounts.put("ann", "9");
  accounts.put_for("bob", "0", std::chrono::minutes(1));
  accounts.transaction([](ordna::Transaction& tx) {
    tx.put("bob", *tx.get("ann"));
    CHECK(tx.remove("ann") && !tx.contains("ann") && keys(tx.entries()) == Keys{"bob"});
  });
  CHECK(*accounts.get("bob") == "9" && accounts.size() == 1);
  int attempts = 0;
  try {
    accounts.transaction(
        [&](ordna::Transaction& tx) {
          attempts++;
          tx.put("x", *tx.get("bob"));
          accounts.put("bob", std::to_string(attempts));
        },
        3);
    CHECK(false);
  } catch (const ordna::Error& error) {
    CHECK(error.status() == ORDNA_STATUS_CONFLICT && attempts == 3 && !accounts.contains("x"));
  }
  CHECK(accounts.expire("bob", std::chrono::milliseconds(0)) && !accounts.contains("bob"));
  CHECK(!accounts.expire("bob", std::nullopt));

  // Many keys, changes by a function, prefixes, statistics.
  ordna::Store counts;
  auto increment = [](std::optional<std::string_view> value) {
    return std::to_string(value ? std::stoi(std::string(*value)) + 1 : 1);
  };
  CHECK(counts.modify("a", increment) == "1" && counts.modify("a", increment) == "2");
  counts.put_for("ab", "3", std::chrono::minutes(1));
  CHECK(counts.modify("ab", increment) == "4" && counts.expires_in("ab") <= std::chrono::minutes(1));
  CHECK(counts.expires_in("a") == std::chrono::milliseconds::max() && !counts.expires_in("x"));
  using Values = std::vector<std::optional<std::string>>;
  CHECK((counts.get_many(Keys{"ab", "x", "a"}) == Values{"4", std::nullopt, "2"}));
  CHECK(counts.get_many(Keys{}).empty());
  CHECK((counts.snapshot().get_many(std::vector<std::string_view>{"a"}) == Values{"2"}));
  counts.transaction([](ordna::Transaction& tx) {
    tx.put("x", "5");
    CHECK((tx.get_many(Keys{"x", "a", "y"}) == Values{"5", "2", std::nullopt}));
  });
  CHECK(!counts.modify("x", [](auto) { return std::optional<std::string>(); }) && counts.size() == 2);
  try {
    counts.modify("a", [](auto) -> std::string { throw std::logic_error("no"); });
    CHECK(false);
  } catch (const std::logic_error&) {
    CHECK(*counts.get("a") == "2");
  }
  try {
    counts.modify("a", [&](std::optional<std::string_view> value) {
      counts.put("a", std::string(*value) + "+");
      return "x";
    });
    CHECK(false);
  } catch (const ordna::Error& error) {
    CHECK(error.status() == ORDNA_STATUS_CONFLICT && counts.get("a")->size() == 101);
  }
  CHECK(counts.count_prefix("a") == 2 && counts.count(ordna::Range::prefix("ab")) == 1);
  ordna_statistics statistics = counts.statistics();
  CHECK(statistics.keys == 2 && statistics.expiring == 1 && statistics.snapshots == 0);
  ordna::Snapshot earlier = counts.snapshot();
  CHECK(counts.remove_prefix("a") == 2 && counts.size() == 0);
  CHECK(earlier.count_prefix("a") == 2 && earlier.count({}) == 2);
  counts.sync();

  // Cursors.
  ordna::Cursor cursor = earlier.cursor();
  CHECK(cursor.next()->first == "a" && cursor.next()->second == "4" && !cursor.next());
  CHECK(cursor.prev()->first == "ab" && cursor.prev()->first == "a" && !cursor.prev());
  cursor.seek("aa");
  CHECK(cursor.next()->first == "ab");
  cursor.seek_after("aa");
  CHECK(cursor.prev()->first == "a");
  cursor.to_end();
  CHECK(cursor.prev()->first == "ab");
  cursor.to_start();
  CHECK(cursor.next()->first == "a" && !cursor.select(2) && cursor.select(1));
  CHECK(cursor.next()->first == "ab" && !counts.cursor().next());

  // More entries than a chunk, in both directions.
  ordna::Store numbers;
  Keys all;
  ordna::Batch batch;
  for (int i = 0; i < 1000; i++) {
    char key[32];
    std::snprintf(key, sizeof key, "%05d", i);
    all.push_back(key);
    batch.put(key, "v");
  }
  numbers.write(batch);
  CHECK(batch.size() == 0 && numbers.size() == 1000 && numbers.memory() > 0);
  CHECK(keys(numbers.entries()) == all);
  ordna::Range reverse;
  reverse.reverse = true;
  std::reverse(all.begin(), all.end());
  CHECK(keys(numbers.entries(reverse)) == all);
  reverse.limit = 256;
  CHECK(keys(numbers.entries(reverse)).size() == 256);
  reverse.limit = 300;
  CHECK(keys(numbers.entries(reverse)).size() == 300);

  // A snapshot outlives its store, and handles can be moved.
  ordna::Store moved = std::move(numbers);
  ordna::Snapshot snapshot = moved.snapshot();
  CHECK(moved.remove_range(ordna::Range::prefix("00")) == 1000);
  { ordna::Store gone = std::move(moved); }
  CHECK(snapshot.size() == 1000 && *snapshot.get("00007") == "v");
  CHECK(keys(snapshot.prefix("0001")).size() == 10);

  // An exception ends the scan, but does not pass through the library.
  int visited = 0;
  try {
    snapshot.for_each({}, [&](std::string_view, std::string_view) {
      if (++visited == 3) throw std::logic_error("stop");
    });
    CHECK(false);
  } catch (const std::logic_error&) {
  }
  auto visit = [&](std::string_view, std::string_view) { return ++visited < 10; };
  snapshot.for_each({}, visit);
  CHECK(visited == 10);

  try {
    store.put(std::string(70000, 'k'), "");
    CHECK(false);
  } catch (const ordna::Error& error) {
    CHECK(error.status() == ORDNA_STATUS_TOO_LONG);
    CHECK(std::string(error.what()).find("70000 bytes") != std::string::npos);
  }
  CHECK(!store.remove(std::string(70000, 'k')));
  CHECK(store.compare_and_set(std::string(70000, 'k'), std::nullopt, std::nullopt));
  CHECK(!store.compare_and_set(std::string(70000, 'k'), "v", std::nullopt));
  batch.remove(std::string(70000, 'k'));
  CHECK(batch.size() == 0);
  try {
    batch.put(std::string_view(static_cast<const char*>(nullptr), 5), "v");
    CHECK(false);
  } catch (const ordna::Error& error) {
    CHECK(std::string(error.what()).find("no data") != std::string::npos);
  }
  {
    ordna::Store towns;
    for (const char* name : {"a", "b", "c"}) towns.put(name, name);
    std::string seen;
    for (const auto& [key, value] : towns.range("a", "c")) seen += key + value;
    CHECK(seen == "aabb");
  }
  static_assert(has_entries<const ordna::Snapshot&> && !has_entries<ordna::Snapshot>);
  static_assert(has_entries<ordna::Store&> && !has_entries<ordna::Store>);
  try {
    ordna::Store::open(std::string(argv[1]) + std::string("/a\0b", 4));
    CHECK(false);
  } catch (const ordna::Error& error) {
    CHECK(error.status() == ORDNA_STATUS_INVALID);
  }
  std::string where = std::string(argv[1]) + "/cpp";
  {
    ordna::Store durable = ordna::Store::open(where, ORDNA_SYNC_ALWAYS);
    durable.put("k", "v");
    try {
      ordna::Store::open(where);
      CHECK(false);
    } catch (const ordna::Error& error) {
      CHECK(error.status() == ORDNA_STATUS_IN_USE);
    }
    durable.backup();
    durable.backup(where + "-copy");
  }
  CHECK(*ordna::Store::open(where).get("k") == "v");
  CHECK(ordna::Store::restore(where + "-copy").size() == 1);
  CHECK(ordna::Range::prefix(std::string(2, '\xFF')).upper == std::nullopt);
  CHECK(*ordna::Range::prefix("a\xFF").upper == "b");
  std::puts("C++: all passed");
}
