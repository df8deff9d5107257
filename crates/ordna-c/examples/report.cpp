// An analytics report next to writers: money moves between accounts, and each report reads one moment, in
// which the sum is always the same. Run without arguments.
//
// Keys: "DK/000000", the country and the account. Values: the amount, as decimal digits.
#include <atomic>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "ordna.hpp"

static constexpr unsigned accounts_count = 3000, writers_count = 2, reports_count = 20;
static constexpr long first_amount = 100;
static const char* const countries[] = {"DK", "NO", "SE"};

static void expect(bool condition, const char* what) {
  if (!condition) throw std::logic_error(std::string("expected ") + what);
}

static std::string key_of(unsigned account) {
  const std::string digits = std::to_string(account);
  return std::string(countries[account % 3]) + "/" + std::string(6 - digits.size(), '0') + digits;
}

static void move(ordna::Store& accounts, unsigned from, unsigned to) {
  accounts.transaction([&](ordna::Transaction& tx) {
    const long taken = std::stol(*tx.get(key_of(from))) - 5, given = std::stol(*tx.get(key_of(to))) + 5;
    tx.put(key_of(from), std::to_string(taken));
    tx.put(key_of(to), std::to_string(given));
  });
}

// Computes the sum of all accounts, first by country and then from a list of keys.
static void report(const ordna::Store& accounts) {
  const ordna::Snapshot now = accounts.snapshot();
  long sum = 0, again = 0;
  for (const char* country : countries) {
    std::size_t seen = 0;
    for (const auto& [key, amount] : now.prefix(country)) {
      sum += std::stol(amount);
      seen++;
    }
    expect(now.count_prefix(country) == seen, "as many accounts as were counted");
  }
  std::vector<std::string> keys;
  for (unsigned account = 0; account < accounts_count; account++) keys.push_back(key_of(account));
  for (const auto& amount : now.get_many(keys)) again += std::stol(amount.value());
  expect(sum == long{accounts_count} * first_amount, "the sum of the money");
  expect(again == sum, "the same sum in another way");
}

int main() try {
  ordna::Store accounts;
  for (unsigned account = 0; account < accounts_count; account++) {
    accounts.put(key_of(account), std::to_string(first_amount));
  }
  std::atomic<bool> ended{false}, failed{false};
  std::atomic<unsigned> moves{0};
  std::vector<std::thread> writers;
  for (unsigned first = 0; first < writers_count; first++) {
    writers.emplace_back([&, first] {
      try {
        for (unsigned at = first; !ended; at += writers_count) {
          const unsigned giver = at * 7 % accounts_count, taker = at * 13 % accounts_count;
          if (giver == taker) continue;
          move(accounts, giver, taker);
          moves++;
        }
      } catch (const std::exception& error) {
        std::fprintf(stderr, "report: %s\n", error.what());
        failed = true;
      }
    });
  }
  // If a report fails, the threads end, too.
  struct Join {
    std::atomic<bool>& ended;
    std::vector<std::thread>& writers;
    void operator()() {
      ended = true;
      for (std::thread& writer : writers) {
        if (writer.joinable()) writer.join();
      }
    }
    ~Join() { (*this)(); }
  } join{ended, writers};
  // Without moves between the reports, equal sums would prove nothing.
  while (moves == 0 && !failed) std::this_thread::yield();
  for (unsigned i = 0; i < reports_count; i++) report(accounts);
  join();
  expect(!failed, "moves without errors");
  report(accounts);
  const ordna_statistics figures = accounts.statistics();
  expect(figures.keys == accounts_count && figures.snapshots == 0, "no snapshot that was left");
  std::printf("%u reports agree\n", reports_count + 1);
} catch (const std::exception& error) {
  std::fprintf(stderr, "report: %s\n", error.what());
  return 1;
}
