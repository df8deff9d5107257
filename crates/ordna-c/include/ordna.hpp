// Ordna for C++17: a header-only wrapper of ordna.h. MIT OR Apache-2.0.
//
// Handles free themselves, errors are exceptions of type ordna::Error, and ranges work with range-based
// `for`. Keys and values are byte strings, as std::string_view and std::string. The rules for threads,
// ownership, callbacks and forks, and the cost of each call, are those of ordna.h.
#ifndef ORDNA_HPP
#define ORDNA_HPP

#include <chrono>
#include <cstdint>
#include <exception>
#include <iterator>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "ordna.h"

namespace ordna {

// An error of the library, with its OrdnaStatus and its text.
class Error : public std::runtime_error {
 public:
  Error(int status, const std::string& text) : std::runtime_error(text), status_(status) {}
  int status() const noexcept { return status_; }

 private:
  int status_;
};

// Converts bytes to a slice, which borrows them.
inline ordna_slice slice(std::string_view bytes) noexcept {
  return {reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()};
}

// Converts a slice to a view of the same bytes.
inline std::string_view view(ordna_slice bytes) noexcept {
  if (bytes.len == 0) return {};
  return {reinterpret_cast<const char*>(bytes.data), bytes.len};
}

// A range of keys. By default, all keys in ascending order.
struct Range {
  std::optional<std::string> lower, upper;
  bool lower_inclusive = true, upper_inclusive = true;
  bool reverse = false;
  std::size_t limit = 0;  // Maximum number of entries of a scan; 0 means no limit.

  // Returns the range of the keys that begin with `begins`.
  static Range prefix(std::string_view begins) {
    Range range;
    range.lower = std::string(begins);
    // The upper end is the smallest key above all keys with this prefix: the prefix without its trailing
    // 0xFF bytes, with the last byte incremented.
    std::string end(begins);
    while (!end.empty() && static_cast<unsigned char>(end.back()) == 0xFF) end.pop_back();
    if (!end.empty()) {
      end.back() = static_cast<char>(static_cast<unsigned char>(end.back()) + 1);
      range.upper = std::move(end);
      range.upper_inclusive = false;
    }
    return range;
  }

  // Returns the range as a structure of C, which borrows the keys of this object.
  ordna_range raw() const noexcept {
    ordna_range range{};
    if (lower) {
      range.lower = slice(*lower);
      range.lower_bound = lower_inclusive ? ORDNA_BOUND_INCLUDED : ORDNA_BOUND_EXCLUDED;
    }
    if (upper) {
      range.upper = slice(*upper);
      range.upper_bound = upper_inclusive ? ORDNA_BOUND_INCLUDED : ORDNA_BOUND_EXCLUDED;
    }
    range.reverse = reverse;
    range.limit = limit;
    return range;
  }
};

using Entry = std::pair<std::string, std::string>;

namespace detail {

template <typename Handle>
[[noreturn]] void raise(const Handle* handle, int status,
                        std::size_t (*text)(const Handle*, char*, std::size_t)) {
  char buffer[512] = "";
  text(handle, buffer, sizeof buffer);
  throw Error(status, buffer);
}

// Converts a duration for a function of C. Negative durations become 0.
inline std::uint64_t life(std::chrono::milliseconds life) noexcept {
  return life.count() < 0 ? 0 : static_cast<std::uint64_t>(life.count());
}

// Returns a path for a function of C. Rejects zero bytes, because C would truncate the path there.
inline const char* path(const std::string& path) {
  if (path.find('\0') != std::string::npos) {
    throw Error(ORDNA_STATUS_INVALID, "the path holds a zero byte");
  }
  return path.c_str();
}

// The read operations that stores, snapshots and transactions share. `Self` provides `get_`,
// `get_many_`, `scan_` and `check_`.
template <typename Self>
class Reads {
 public:
  // Returns a copy of the value of a key, or `std::nullopt` if the key is absent.
  std::optional<std::string> get(std::string_view key) const {
    std::string value(64, '\0');
    for (;;) {
      std::size_t length = 0;
      int status = self().get_(slice(key), reinterpret_cast<std::uint8_t*>(value.data()),
                               value.size(), &length);
      if (status == ORDNA_STATUS_NOT_FOUND) return std::nullopt;
      self().check_(status);
      value.resize(length);
      if (status == ORDNA_STATUS_OK) return value;
    }
  }

  // Returns whether a key is present.
  bool contains(std::string_view key) const {
    int status = self().get_(slice(key), nullptr, 0, nullptr);
    self().check_(status);
    return status != ORDNA_STATUS_NOT_FOUND;
  }

  // Returns the values of many keys in the order of `keys`, with `std::nullopt` for absent keys. `keys` is a
  // container whose items convert to std::string_view.
  template <typename Keys>
  std::vector<std::optional<std::string>> get_many(const Keys& keys) const {
    std::vector<ordna_slice> slices;
    for (const auto& key : keys) slices.push_back(slice(key));
    struct Context {
      std::vector<std::optional<std::string>> values;
      std::exception_ptr thrown;
    } context{{}, nullptr};
    auto call = [](void* opaque, std::size_t, const ordna_slice* value) -> int {
      auto* context = static_cast<Context*>(opaque);
      try {
        if (value) {
          context->values.emplace_back(view(*value));
        } else {
          context->values.emplace_back(std::nullopt);
        }
        return 0;
      } catch (...) {
        context->thrown = std::current_exception();
        return 1;
      }
    };
    int status = self().get_many_(slices.data(), slices.size(), call, &context);
    if (context.thrown) std::rethrow_exception(context.thrown);
    self().check_(status);
    return std::move(context.values);
  }

  // Calls `visit(key, value)` with the entries of a range in order. If `visit` returns a bool, `false` ends
  // the scan. If it throws, the scan ends and this function throws the same exception.
  template <typename Visit>
  void for_each(const Range& range, Visit&& visit) const {
    struct Context {
      std::remove_reference_t<Visit>* visit;
      std::exception_ptr thrown;
    } context{std::addressof(visit), nullptr};
    auto call = [](void* opaque, ordna_slice key, ordna_slice value) -> int {
      auto* context = static_cast<Context*>(opaque);
      try {
        if constexpr (std::is_same_v<decltype((*context->visit)(view(key), view(value))), bool>) {
          return (*context->visit)(view(key), view(value)) ? 0 : 1;
        } else {
          (*context->visit)(view(key), view(value));
          return 0;
        }
      } catch (...) {
        context->thrown = std::current_exception();
        return 1;
      }
    };
    ordna_range raw = range.raw();
    int status = self().scan_(&raw, call, &context);
    if (context.thrown) std::rethrow_exception(context.thrown);
    self().check_(status);
  }

  // The entries of a range, for range-based `for`. They are read in chunks of up to 256 entries; a chunk of
  // a store has the entries of the moment when it is read. The store or snapshot must outlive this object.
  class Entries {
   public:
    class iterator {
     public:
      using iterator_category = std::input_iterator_tag;
      using value_type = Entry;
      using difference_type = std::ptrdiff_t;
      using pointer = const Entry*;
      using reference = const Entry&;

      iterator() = default;
      reference operator*() const { return (*chunk_)[at_]; }
      pointer operator->() const { return &(*chunk_)[at_]; }
      iterator& operator++() {
        if (++at_ == chunk_->size()) read();
        return *this;
      }
      iterator operator++(int) {
        iterator before = *this;
        ++*this;
        return before;
      }
      friend bool operator==(const iterator& a, const iterator& b) {
        return a.chunk_ == b.chunk_ && a.at_ == b.at_;
      }
      friend bool operator!=(const iterator& a, const iterator& b) { return !(a == b); }

     private:
      friend class Entries;
      iterator(const Reads* reads, Range range) : reads_(reads), range_(std::move(range)) { read(); }

      void read() {
        at_ = 0;
        auto chunk = std::make_shared<std::vector<Entry>>();
        if (!done_) {
          const std::size_t room = 256;
          const std::size_t left = range_.limit;
          Range part = range_;
          part.limit = left != 0 && left < room ? left : room;
          reads_->for_each(part, [&](std::string_view key, std::string_view value) {
            chunk->emplace_back(key, value);
          });
          done_ = chunk->size() < part.limit || left == part.limit;
          if (left != 0) range_.limit = left - chunk->size();
          if (!chunk->empty()) {
            (range_.reverse ? range_.upper : range_.lower) = chunk->back().first;
            (range_.reverse ? range_.upper_inclusive : range_.lower_inclusive) = false;
          }
        }
        chunk_ = chunk->empty() ? nullptr : std::move(chunk);
      }

      const Reads* reads_ = nullptr;
      Range range_;
      bool done_ = false;
      std::shared_ptr<const std::vector<Entry>> chunk_;
      std::size_t at_ = 0;
    };

    iterator begin() const { return iterator(reads_, range_); }
    iterator end() const { return {}; }

   private:
    friend class Reads;
    Entries(const Reads* reads, Range range) : reads_(reads), range_(std::move(range)) {}
    const Reads* reads_;
    Range range_;
  };

  // Returns the entries of a range, by default all entries.
  Entries entries(Range range = {}) const& { return Entries(this, std::move(range)); }
  // Returns the entries with keys from `lower` to below `upper`.
  Entries range(std::string_view lower, std::string_view upper) const& {
    Range range;
    range.lower = std::string(lower);
    range.upper = std::string(upper);
    range.upper_inclusive = false;
    return entries(std::move(range));
  }
  Entries range(std::string_view lower, std::string_view upper) const&& = delete;
  // Returns the entries whose keys begin with `begins`.
  Entries prefix(std::string_view begins) const& { return entries(Range::prefix(begins)); }
  // A temporary object would be destroyed before the first entry is read.
  Entries entries(Range range = {}) const&& = delete;
  Entries prefix(std::string_view begins) const&& = delete;

 private:
  const Self& self() const { return static_cast<const Self&>(*this); }
};

}  // namespace detail

// A position between two entries of a snapshot, which moves in both directions. One thread at a time may
// use it. It may outlive its store. The views that it returns are valid until its next call.
class Cursor {
 public:
  using Views = std::pair<std::string_view, std::string_view>;

  // Moves past the next or the previous entry and returns it, or `std::nullopt` if there is none.
  std::optional<Views> next() { return step(ordna_cursor_next); }
  std::optional<Views> prev() { return step(ordna_cursor_prev); }
  // Moves before the first entry, or after the last one.
  void to_start() { check(ordna_cursor_start(handle_.get())); }
  void to_end() { check(ordna_cursor_end(handle_.get())); }
  // Moves directly before a key, which need not be present: `next` returns the first entry whose key is at
  // least `key`.
  void seek(std::string_view key) { check(ordna_cursor_seek(handle_.get(), slice(key), false)); }
  // Moves directly after a key: `prev` returns the last entry whose key is at most `key`.
  void seek_after(std::string_view key) { check(ordna_cursor_seek(handle_.get(), slice(key), true)); }
  // Moves before the entry at `position`, counted from 0. Returns false, and does not move, if there are not
  // that many entries.
  bool select(std::size_t position) {
    return check(ordna_cursor_select(handle_.get(), position)) == ORDNA_STATUS_OK;
  }

 private:
  friend class Snapshot;
  friend class Store;
  explicit Cursor(ordna_cursor* handle) : handle_(handle) {}

  std::optional<Views> step(int (*step)(ordna_cursor*, ordna_slice*, ordna_slice*)) {
    ordna_slice key{}, value{};
    if (check(step(handle_.get(), &key, &value)) != ORDNA_STATUS_OK) return std::nullopt;
    return Views(view(key), view(value));
  }
  int check(int status) const {
    if (status < 0) detail::raise(handle_.get(), status, ordna_cursor_error);
    return status;
  }

  struct Free {
    void operator()(ordna_cursor* handle) const { ordna_cursor_free(handle); }
  };
  std::unique_ptr<ordna_cursor, Free> handle_;
};

// A state of a store at one moment, which later writes do not change. It may outlive the store.
class Snapshot : public detail::Reads<Snapshot> {
 public:
  // Returns the number of entries.
  std::size_t size() const { return ordna_snapshot_len(handle_.get()); }
  // Returns the number of keys in a range. Its direction and limit are ignored. The rank of a key is the
  // number of keys below it.
  std::size_t count(const Range& range) const {
    ordna_range raw = range.raw();
    std::size_t count = 0;
    check_(ordna_snapshot_count(handle_.get(), &raw, &count));
    return count;
  }
  // Returns the number of keys that begin with `begins`.
  std::size_t count_prefix(std::string_view begins) const {
    std::size_t count = 0;
    check_(ordna_snapshot_count_prefix(handle_.get(), slice(begins), &count));
    return count;
  }
  // Returns a cursor before the first entry.
  Cursor cursor() const {
    ordna_cursor* handle = nullptr;
    check_(ordna_snapshot_cursor(handle_.get(), &handle));
    return Cursor(handle);
  }

 private:
  friend class Store;
  friend class detail::Reads<Snapshot>;
  explicit Snapshot(ordna_snapshot* handle) : handle_(handle) {}

  int get_(ordna_slice key, std::uint8_t* buffer, std::size_t room, std::size_t* length) const {
    return ordna_snapshot_get(handle_.get(), key, buffer, room, length);
  }
  int get_many_(const ordna_slice* keys, std::size_t count, ordna_visit_value visit,
                void* context) const {
    return ordna_snapshot_get_many(handle_.get(), keys, count, visit, context);
  }
  int scan_(const ordna_range* range, ordna_visit visit, void* context) const {
    return ordna_snapshot_scan(handle_.get(), range, visit, context);
  }
  void check_(int status) const {
    if (status < 0) detail::raise(handle_.get(), status, ordna_snapshot_error);
  }

  struct Free {
    void operator()(ordna_snapshot* handle) const { ordna_snapshot_free(handle); }
  };
  std::unique_ptr<ordna_snapshot, Free> handle_;
};

// A list of writes that `Store::write` applies together. One thread at a time may use it.
class Batch {
 public:
  Batch() {
    ordna_batch* handle = nullptr;
    if (int status = ordna_batch_new(&handle)) throw Error(status, "no batch was made");
    handle_.reset(handle);
  }
  // Appends a write that sets the value of a key.
  Batch& put(std::string_view key, std::string_view value) {
    return check(ordna_batch_put(handle_.get(), slice(key), slice(value)));
  }
  // Appends a write that removes a key, or does nothing if the key is absent by then.
  Batch& remove(std::string_view key) {
    return check(ordna_batch_remove(handle_.get(), slice(key)));
  }
  // Returns the number of writes.
  std::size_t size() const { return ordna_batch_len(handle_.get()); }

 private:
  friend class Store;
  Batch& check(int status) {
    if (status != ORDNA_STATUS_OK) detail::raise(handle_.get(), status, ordna_batch_error);
    return *this;
  }
  struct Free {
    void operator()(ordna_batch* handle) const { ordna_batch_free(handle); }
  };
  std::unique_ptr<ordna_batch, Free> handle_;
};

// Reads of one moment, and writes that `commit` applies as one step. One thread at a time may use it, and
// its store must outlive it. Without a commit its writes are discarded.
class Transaction : public detail::Reads<Transaction> {
 public:
  // Sets the value of a key when the transaction commits.
  void put(std::string_view key, std::string_view value) {
    check_(ordna_transaction_put(handle_.get(), slice(key), slice(value)));
  }
  // Sets the value of a key, which expires after `life`, when the transaction commits.
  void put_for(std::string_view key, std::string_view value, std::chrono::milliseconds life) {
    check_(ordna_transaction_put_for(handle_.get(), slice(key), slice(value), detail::life(life)));
  }
  // Removes a key when the transaction commits. Returns whether the key is present.
  bool remove(std::string_view key) {
    int status = ordna_transaction_remove(handle_.get(), slice(key));
    check_(status);
    return status == ORDNA_STATUS_OK;
  }
  // Applies the writes as one step and ends the transaction. Returns false, and writes nothing, if other
  // writes changed what was read.
  [[nodiscard]] bool commit() {
    int status = ordna_transaction_commit(handle_.get());
    if (status == ORDNA_STATUS_CONFLICT) return false;
    check_(status);
    return true;
  }

 private:
  friend class Store;
  friend class detail::Reads<Transaction>;
  explicit Transaction(ordna_transaction* handle) : handle_(handle) {}

  int get_(ordna_slice key, std::uint8_t* buffer, std::size_t room, std::size_t* length) const {
    return ordna_transaction_get(handle_.get(), key, buffer, room, length);
  }
  int get_many_(const ordna_slice* keys, std::size_t count, ordna_visit_value visit,
                void* context) const {
    return ordna_transaction_get_many(handle_.get(), keys, count, visit, context);
  }
  int scan_(const ordna_range* range, ordna_visit visit, void* context) const {
    return ordna_transaction_scan(handle_.get(), range, visit, context);
  }
  void check_(int status) const {
    if (status < 0) detail::raise(handle_.get(), status, ordna_transaction_error);
  }

  struct Free {
    void operator()(ordna_transaction* handle) const { ordna_transaction_free(handle); }
  };
  std::unique_ptr<ordna_transaction, Free> handle_;
};

// An ordered key-value store of byte strings. Many threads may use it at the same time.
class Store : public detail::Reads<Store> {
 public:
  // Creates an empty store in memory. `memory_limit` is in bytes; 0 means no limit.
  explicit Store(std::uint64_t memory_limit = 0) {
    ordna_store* handle = nullptr;
    if (int status = ordna_new(memory_limit, &handle)) throw Error(status, "no store was made");
    handle_.reset(handle);
  }

  // Opens the store of a directory, which is created if it does not exist.
  static Store open(const std::string& path, OrdnaSync sync = ORDNA_SYNC_EVERY_SECOND,
                    std::uint64_t memory_limit = 0) {
    ordna_store* handle = nullptr;
    char text[512] = "";
    int status = ordna_open(detail::path(path), sync, memory_limit, &handle, text, sizeof text);
    if (status != ORDNA_STATUS_OK) throw Error(status, text);
    return Store(handle);
  }

  // Creates a store in memory from a backup.
  static Store restore(const std::string& path, std::uint64_t memory_limit = 0) {
    ordna_store* handle = nullptr;
    char text[512] = "";
    int status = ordna_restore(detail::path(path), memory_limit, &handle, text, sizeof text);
    if (status != ORDNA_STATUS_OK) throw Error(status, text);
    return Store(handle);
  }

  // Returns the number of entries. Exact while no other thread writes.
  std::size_t size() const { return ordna_len(handle_.get()); }
  // Returns the number of keys in a range. Its direction and limit are ignored. The rank of a key is the
  // number of keys below it.
  std::size_t count(const Range& range) const {
    ordna_range raw = range.raw();
    std::size_t count = 0;
    check_(ordna_count(handle_.get(), &raw, &count));
    return count;
  }
  // Returns the number of keys that begin with `begins`.
  std::size_t count_prefix(std::string_view begins) const {
    std::size_t count = 0;
    check_(ordna_count_prefix(handle_.get(), slice(begins), &count));
    return count;
  }
  // Returns a cursor before the first entry.
  Cursor cursor() const {
    ordna_cursor* handle = nullptr;
    check_(ordna_cursor_open(handle_.get(), &handle));
    return Cursor(handle);
  }

  // Sets the value of a key. The entry does not expire.
  void put(std::string_view key, std::string_view value) {
    check_(ordna_put(handle_.get(), slice(key), slice(value)));
  }
  // Sets the value of a key, which expires after `life`.
  void put_for(std::string_view key, std::string_view value, std::chrono::milliseconds life) {
    check_(ordna_put_for(handle_.get(), slice(key), slice(value), detail::life(life)));
  }
  // Makes a key expire after `life`, or never with `std::nullopt`. Returns whether the key is present.
  bool expire(std::string_view key, std::optional<std::chrono::milliseconds> life) {
    int status = ordna_expire(handle_.get(), slice(key), life ? detail::life(*life) : UINT64_MAX);
    check_(status);
    return status == ORDNA_STATUS_OK;
  }
  // Returns the time until a key expires, `milliseconds::max()` if it does not expire, or `std::nullopt` if
  // it is absent.
  std::optional<std::chrono::milliseconds> expires_in(std::string_view key) const {
    std::uint64_t left = 0;
    int status = ordna_expires_in(handle_.get(), slice(key), &left);
    check_(status);
    if (status != ORDNA_STATUS_OK) return std::nullopt;
    const auto most = std::chrono::milliseconds::max();
    if (left >= static_cast<std::uint64_t>(most.count())) return most;
    return std::chrono::milliseconds(static_cast<std::chrono::milliseconds::rep>(left));
  }
  // Removes a key. Returns whether it was present.
  bool remove(std::string_view key) {
    int status = ordna_remove(handle_.get(), slice(key));
    check_(status);
    return status == ORDNA_STATUS_OK;
  }
  // Sets a key to `desired` if its value is `expected`, as one step. Returns whether it was. `std::nullopt`
  // stands for an absent key.
  bool compare_and_set(std::string_view key, std::optional<std::string_view> expected,
                       std::optional<std::string_view> desired) {
    ordna_slice old{}, next{};
    if (expected) old = slice(*expected);
    if (desired) next = slice(*desired);
    int status = ordna_compare_and_set(handle_.get(), slice(key), expected ? &old : nullptr,
                                       desired ? &next : nullptr);
    check_(status);
    return status == ORDNA_STATUS_OK;
  }
  // Calls `decide` with the value of a key, a `std::optional<std::string_view>`, and sets the key to the
  // result, as one step. `std::nullopt` stands for an absent key: as the result, it removes the key. Returns
  // the new value, which keeps the deadline of the former one.
  //
  // If another thread writes the key while `decide` runs, `decide` is called again, up to 100 times in all;
  // then an Error with the status ORDNA_STATUS_CONFLICT is thrown. `decide` may use the store. If it throws,
  // the key is unchanged.
  template <typename Decide>
  std::optional<std::string> modify(std::string_view key, Decide&& decide) {
    struct Context {
      std::remove_reference_t<Decide>* decide;
      std::optional<std::string> next;
      std::exception_ptr thrown;
    } context{std::addressof(decide), std::nullopt, nullptr};
    auto call = [](void* opaque, const ordna_slice* value, ordna_slice* next) -> int {
      auto* context = static_cast<Context*>(opaque);
      try {
        std::optional<std::string_view> old;
        if (value) old = view(*value);
        context->next = (*context->decide)(old);
        if (!context->next) return ORDNA_CHANGE_REMOVE;
        *next = slice(*context->next);
        return ORDNA_CHANGE_PUT;
      } catch (...) {
        context->thrown = std::current_exception();
        return -1;
      }
    };
    int status = ordna_modify(handle_.get(), slice(key), call, &context);
    if (context.thrown) std::rethrow_exception(context.thrown);
    check_(status);
    return std::move(context.next);
  }
  // Removes all keys that begin with `begins` and returns how many there were.
  std::size_t remove_prefix(std::string_view begins) {
    std::size_t removed = 0;
    check_(ordna_remove_prefix(handle_.get(), slice(begins), &removed));
    return removed;
  }
  // Removes all keys in a range and returns how many there were. Its direction and limit are ignored.
  std::size_t remove_range(const Range& range) {
    ordna_range raw = range.raw();
    std::size_t removed = 0;
    check_(ordna_remove_range(handle_.get(), &raw, &removed));
    return removed;
  }
  // Applies the writes of a batch in order and empties it. Every snapshot holds all of them or none.
  void write(Batch& batch) { check_(ordna_write(handle_.get(), batch.handle_.get())); }
  // Begins a transaction.
  Transaction begin() {
    ordna_transaction* handle = nullptr;
    check_(ordna_begin(handle_.get(), &handle));
    return Transaction(handle);
  }
  // Calls `work(transaction)` and commits the transaction. If other writes changed what it had read, calls
  // `work` again with a new transaction, up to `attempts` times in all; then an Error with the status
  // ORDNA_STATUS_CONFLICT is thrown. If `work` throws, nothing is written.
  template <typename Work>
  void transaction(Work&& work, int attempts = 100) {
    for (int attempt = 0; attempt < attempts; attempt++) {
      Transaction transaction = begin();
      work(transaction);
      if (transaction.commit()) return;
      std::this_thread::yield();
    }
    throw Error(ORDNA_STATUS_CONFLICT, "the transaction conflicted with other writes in each attempt");
  }
  // Takes a snapshot. The cost does not depend on the number of entries.
  Snapshot snapshot() const {
    ordna_snapshot* handle = nullptr;
    check_(ordna_snapshot_take(handle_.get(), &handle));
    return Snapshot(handle);
  }
  // Backs up the current state into the store's directory, or into a new directory.
  void backup() { check_(ordna_backup(handle_.get(), nullptr)); }
  void backup(const std::string& path) { check_(ordna_backup(handle_.get(), detail::path(path))); }
  // Makes all earlier writes durable.
  void sync() { check_(ordna_sync(handle_.get())); }
  // Returns the memory that the store uses, in bytes. O(n).
  std::size_t memory() const { return ordna_memory(handle_.get()); }
  // Returns the statistics of the store.
  ordna_statistics statistics() const {
    ordna_statistics statistics{};
    check_(ordna_statistics_of(handle_.get(), &statistics));
    return statistics;
  }

 private:
  friend class detail::Reads<Store>;
  explicit Store(ordna_store* handle) : handle_(handle) {}

  int get_(ordna_slice key, std::uint8_t* buffer, std::size_t room, std::size_t* length) const {
    return ordna_get(handle_.get(), key, buffer, room, length);
  }
  int get_many_(const ordna_slice* keys, std::size_t count, ordna_visit_value visit,
                void* context) const {
    return ordna_get_many(handle_.get(), keys, count, visit, context);
  }
  int scan_(const ordna_range* range, ordna_visit visit, void* context) const {
    return ordna_scan(handle_.get(), range, visit, context);
  }
  void check_(int status) const {
    if (status < 0) detail::raise(handle_.get(), status, ordna_error);
  }

  struct Free {
    void operator()(ordna_store* handle) const { ordna_free(handle); }
  };
  std::unique_ptr<ordna_store, Free> handle_;
};

}  // namespace ordna

#endif  // ORDNA_HPP
