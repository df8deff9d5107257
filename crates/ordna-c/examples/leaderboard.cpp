// A leaderboard that is exact although threads change scores at once: points by player, and players by
// points, changed together by transactions; and a counter of games that needs none. Run without arguments.
//
// Keys: "points/NAME", value: the points. "order/" + the complement of the points in big-endian order +
// NAME: the most points come first.
#include <cinttypes>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "ordna.hpp"

static void expect(bool condition, const char* what) {
  if (!condition) throw std::logic_error(std::string("expected ") + what);
}

// In this form, numbers are ordered like their bytes.
static std::string encode(std::uint64_t number) {
  std::string bytes(8, '\0');
  for (int i = 7; i >= 0; i--, number >>= 8) bytes[i] = static_cast<char>(number & 0xFF);
  return bytes;
}

static std::uint64_t decode(std::string_view bytes) {
  std::uint64_t number = 0;
  for (char byte : bytes.substr(0, 8)) number = number << 8 | static_cast<unsigned char>(byte);
  return number;
}

class Leaderboard {
 public:
  void score(const std::string& player, std::uint64_t more) {
    store_.transaction([&](ordna::Transaction& tx) {
      std::uint64_t points = 0;
      if (auto before = tx.get("points/" + player)) {
        points = decode(*before);
        tx.remove(order_key(points, player));
      }
      tx.put(order_key(points + more, player), "");
      tx.put("points/" + player, encode(points + more));
    });
    // A change of one key needs no transaction.
    store_.modify("games", [](std::optional<std::string_view> games) {
      return encode(games ? decode(*games) + 1 : 1);
    });
  }

  std::vector<std::pair<std::string, std::uint64_t>> top(std::size_t count) const {
    ordna::Range best = ordna::Range::prefix("order/");
    best.limit = count;
    std::vector<std::pair<std::string, std::uint64_t>> top;
    for (const auto& [key, value] : store_.entries(best)) {
      top.emplace_back(key.substr(14), ~decode(std::string_view(key).substr(6)));
    }
    return top;
  }

  // Returns the place of a player, counted from 1. Both reads see the same state.
  std::size_t place(const std::string& player) const {
    const ordna::Snapshot now = store_.snapshot();
    const auto points = now.get("points/" + player);
    expect(points.has_value(), "a player with points");
    ordna::Range better = ordna::Range::prefix("order/");
    better.upper = order_key(decode(*points), player);
    return now.count(better) + 1;
  }

  std::size_t players() const { return store_.count_prefix("order/"); }
  std::uint64_t games() const { return decode(store_.get("games").value_or(encode(0))); }

 private:
  static std::string order_key(std::uint64_t points, const std::string& player) {
    return "order/" + encode(~points) + player;
  }

  ordna::Store store_;
};

int main() try {
  const std::vector<std::string> players = {"Ada", "Barbara", "Edsger", "Grace"};
  Leaderboard board;
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; i++) {
    threads.emplace_back([&] {
      for (unsigned game = 0; game < 400; game++) board.score(players[game % 4], game % 4);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& [player, points] : board.top(3)) {
    std::printf("%s: %" PRIu64 "\n", player.c_str(), points);
  }
  expect(board.players() == players.size(), "one line for each player");
  std::printf("Ada is number %zu of %zu after %" PRIu64 " games\n", board.place("Ada"),
              board.players(), board.games());
} catch (const std::exception& error) {
  std::fprintf(stderr, "leaderboard: %s\n", error.what());
  return 1;
}
