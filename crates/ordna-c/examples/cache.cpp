// A cache for something slow: entries expire, a group of them is removed by its prefix, and a full
// cache still returns pages. Run without arguments.
#include <chrono>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "ordna.hpp"

using namespace std::chrono_literals;

static void expect(bool condition, const char* what) {
  if (!condition) throw std::logic_error(std::string("expected ") + what);
}

class Cache {
 public:
  Cache(std::chrono::milliseconds life, std::uint64_t memory) : life_(life), pages_(memory) {}

  std::string page(std::string_view user, int number) {
    const std::string key = key_of(user, number);
    if (auto found = pages_.get(key)) return *found;
    rendered_++;
    std::string page = "page " + std::to_string(number) + " of " + std::string(user);
    page.resize(4096, ' ');
    try {
      pages_.put_for(key, page, life_);
    } catch (const ordna::Error& error) {
      // A full cache still returns the page.
      if (error.status() != ORDNA_STATUS_MEMORY_LIMIT) throw;
    }
    return page;
  }

  // Removes all pages of a user. Returns how many there were.
  std::size_t forget(std::string_view user) { return pages_.remove_prefix(std::string(user) + "/"); }

  // Lets a page expire after this time.
  void expire(std::string_view user, int number, std::chrono::milliseconds after) {
    pages_.expire(key_of(user, number), after);
  }

  // Returns how many of the first pages of a user are in the cache, with one call for all of them.
  std::size_t warm(std::string_view user) const {
    std::vector<std::string> keys;
    for (int number = 0; number < 8; number++) keys.push_back(key_of(user, number));
    std::size_t warm = 0;
    for (const auto& page : pages_.get_many(keys)) warm += page.has_value();
    return warm;
  }

  std::size_t pages_of(std::string_view user) const {
    return pages_.count_prefix(std::string(user) + "/");
  }
  ordna_statistics statistics() const { return pages_.statistics(); }
  int rendered() const { return rendered_; }

 private:
  // The slash ends the name, so "bob" does not match pages of "bobby".
  static std::string key_of(std::string_view user, int number) {
    return std::string(user) + "/" + std::to_string(number);
  }

  std::chrono::milliseconds life_;
  ordna::Store pages_;
  int rendered_ = 0;
};

int main() try {
  Cache cache(1min, 4 << 20);
  for (int round = 0; round < 3; round++) {
    for (const char* user : {"ann", "bob", "bobby"}) {
      for (int number = 0; number < 4; number++) cache.page(user, number);
    }
  }
  std::printf("%d of 36 pages were found\n", 36 - cache.rendered());
  expect(cache.page("bobby", 3).rfind("page 3 of bobby ", 0) == 0, "the page of bobby");
  const std::size_t of_bob = cache.pages_of("bob"), dropped = cache.forget("bob");
  std::printf("bob had %zu pages, %zu dropped; bobby has %zu\n", of_bob, dropped, cache.warm("bobby"));

  // One page will expire soon.
  cache.expire("ann", 1, 50ms);
  std::this_thread::sleep_for(100ms);
  const int before = cache.rendered();
  cache.page("ann", 1);
  cache.page("ann", 1);
  expect(cache.rendered() == before + 1, "a page that has expired");
  std::puts("an expired page was created again");

  // Pages that exceed the limit are created at each request.
  for (int number = 0; number < 2000; number++) cache.page("zoe", number);
  const ordna_statistics figures = cache.statistics();
  expect(figures.bytes <= figures.memory_limit && figures.keys < 2000, "a bounded cache");
  std::printf("full: %s\n", figures.bytes > figures.memory_limit / 2 ? "yes" : "no");
} catch (const std::exception& error) {
  std::fprintf(stderr, "cache: %s\n", error.what());
  return 1;
}
