// An event log on a disk. Events are appended in order and read from a given time on, old events
// are removed, and the log remains after the program has ended. Usage: event_log DIRECTORY (which
// need not exist).
//
// A key has 16 bytes: the seconds of the event and its number, both in big-endian order.
#include <cinttypes>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "ordna.hpp"

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

class EventLog {
 public:
  // Entries are on the disk when an append returns.
  explicit EventLog(const std::string& directory)
      : store_(ordna::Store::open(directory, ORDNA_SYNC_ALWAYS)) {
    ordna::Cursor cursor = store_.cursor();
    cursor.to_end();
    // The next number follows the last one.
    if (auto last = cursor.prev()) next_ = decode(last->first.substr(8)) + 1;
  }

  void append(std::uint64_t seconds, std::string_view event) {
    store_.put(encode(seconds) + encode(next_++), event);
  }

  // Appends events of one second together. After a crash, all of them are present or none.
  void append_all(std::uint64_t seconds, const std::vector<std::string_view>& events) {
    ordna::Batch batch;
    for (std::string_view event : events) batch.put(encode(seconds) + encode(next_++), event);
    store_.write(batch);
  }

  template <typename Visit>
  void since(std::uint64_t seconds, Visit&& visit) const {
    ordna::Range since;
    since.lower = encode(seconds);
    for (const auto& [key, event] : store_.entries(since)) visit(decode(key), event);
  }

  std::size_t drop_before(std::uint64_t seconds) {
    ordna::Range old;
    old.upper = encode(seconds);
    old.upper_inclusive = false;
    return store_.remove_range(old);
  }

  std::uint64_t appended() const { return next_; }
  std::size_t size() const { return store_.size(); }

 private:
  ordna::Store store_;
  std::uint64_t next_ = 0;
};

int main(int argc, char** argv) try {
  if (argc != 2) {
    std::fprintf(stderr, "usage: event_log DIRECTORY\n");
    return 2;
  }
  const std::uint64_t noon = 1767268800;
  {
    EventLog log(argv[1]);
    for (std::uint64_t minute = 0; minute < 20; minute++) {
      log.append(noon + minute * 60, "event " + std::to_string(minute));
    }
    log.append_all(noon + 19 * 60, {"a second event", "and a third one"});
  }
  EventLog log(argv[1]);
  if (log.appended() != 22) throw std::logic_error("expected 22 events");
  const std::size_t dropped = log.drop_before(noon + 5 * 60);
  std::printf("%zu events were dropped, %zu are kept\n", dropped, log.size());
  log.since(noon + 19 * 60, [](std::uint64_t seconds, const std::string& event) {
    std::printf("%" PRIu64 " %s\n", seconds, event.c_str());
  });
} catch (const std::exception& error) {
  std::fprintf(stderr, "event_log: %s\n", error.what());
  return 1;
}
