/* Ordna: an ordered map for many threads. MIT OR Apache-2.0.
 *
 * Every function may be called by many threads at once on one handle, but those that free a handle:
 * no other call may use that handle then or later. Batches, cursors and transactions are for one thread
 * at a time. Keys have up to 65,535 bytes, values up to 512 MiB. A slice of length 0 may have a null
 * pointer.
 *
 * Callbacks may call every function on the same store, but those that free it. Those of transactions may
 * not commit it.
 *
 * Keys are ordered by their bytes. A number in a key goes in big-endian order: docs/C.md has that and
 * other idioms, and crates/ordna-c/examples the programs.
 *
 * Fork: handles belong to the process that made them. In a child, calls return ORDNA_STATUS_FORKED (lengths
 * and sizes are 0) and change nothing; ordna_free and ordna_snapshot_free free nothing there. A child opens
 * or makes stores of its own. While a child lives, a directory whose parent was killed stays in use.
 *
 * ABI: before 1.0 each minor version (0.1, 0.2) may change functions and structures, and has a shared
 * library of its own name (libordna_c.so.0.1). Patch versions add at most. Initialize structures with
 * {0}, and recompile with the header of the library.
 *
 * This file is made by cbindgen from crates/ordna-c/src; `ORDNA_BLESS=1 cargo test -p ordna-c` writes it. */

#ifndef ORDNA_H
#define ORDNA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The version of this header; `ordna_version()` is that of the library. */
#define ORDNA_VERSION_MAJOR 0
#define ORDNA_VERSION_MINOR 1
#define ORDNA_VERSION_PATCH 0

// The answer of a call: 0, a positive number for an expected outcome, a negative one for an error.
typedef enum {
  // Done.
  ORDNA_STATUS_OK = 0,
  // The key is absent.
  ORDNA_STATUS_NOT_FOUND = 1,
  // The value is longer than the caller's buffer.
  ORDNA_STATUS_TOO_SMALL = 2,
  // The callback ended the call.
  ORDNA_STATUS_STOPPED = 3,
  // The value was not the expected one; nothing was changed.
  ORDNA_STATUS_MISMATCH = 4,
  // A null pointer, or a number that has no meaning here.
  ORDNA_STATUS_INVALID = -1,
  // The key or the value is too long.
  ORDNA_STATUS_TOO_LONG = -2,
  // The memory limit is reached.
  ORDNA_STATUS_MEMORY_LIMIT = -3,
  // The system refused an operation on a file.
  ORDNA_STATUS_IO = -4,
  // A file is damaged, or of another kind or a later version.
  ORDNA_STATUS_DAMAGED = -5,
  // Another store or process uses the directory, or a backup is under way.
  ORDNA_STATUS_IN_USE = -6,
  // The target of a backup exists already.
  ORDNA_STATUS_EXISTS = -7,
  // The handle belongs to the process that forked this one.
  ORDNA_STATUS_FORKED = -8,
  // What a transaction or a decision has read was changed by others before its write.
  ORDNA_STATUS_CONFLICT = -9,
  // A defect of this library. The store can still be used.
  ORDNA_STATUS_PANIC = -100,
} OrdnaStatus;

// When a store's log is made durable.
typedef enum {
  // Before a write returns.
  ORDNA_SYNC_ALWAYS = 0,
  // Once a second.
  ORDNA_SYNC_EVERY_SECOND = 1,
  // When the system likes.
  ORDNA_SYNC_NEVER = 2,
} OrdnaSync;

// How an end of a range counts.
typedef enum {
  // There is no end on this side.
  ORDNA_BOUND_UNBOUNDED = 0,
  // The key is within.
  ORDNA_BOUND_INCLUDED = 1,
  // The key is outside.
  ORDNA_BOUND_EXCLUDED = 2,
} OrdnaBound;

// What a callback of `ordna_modify` decides.
typedef enum {
  // The entry stays as it is.
  ORDNA_CHANGE_KEEP = 0,
  // The key gets the value `*next`.
  ORDNA_CHANGE_PUT = 1,
  // The key is removed.
  ORDNA_CHANGE_REMOVE = 2,
} OrdnaChange;

// Writes that belong together. One thread at a time may use it.
typedef struct ordna_batch ordna_batch;

// A place between two entries of one state, which moves both ways. One thread at a time may use it.
typedef struct ordna_cursor ordna_cursor;

// A state of a store that does not change.
typedef struct ordna_snapshot ordna_snapshot;

// An ordered store of byte strings.
typedef struct ordna_store ordna_store;

// Reads at one moment and writes of its own, which a commit applies as one step. One thread at a
// time may use it.
typedef struct ordna_transaction ordna_transaction;

// Bytes of the caller or of the library; `data` may be null if `len` is 0.
typedef struct {
  // The first byte.
  const uint8_t *data;
  // Number of bytes.
  size_t len;
} ordna_slice;

// Gets the value of the key at `position`; null: the key is absent. The value is valid during the
// call. A result other than 0 ends the reads. It must return: no exception and no longjmp may leave it.
typedef int (*ordna_visit_value)(void *context, size_t position, const ordna_slice *value);

// Decides on a change: gets the value (null: the key is absent), which is valid during the call, and
// returns an `OrdnaChange`. For `ORDNA_CHANGE_PUT` it sets `*next` to bytes of its own, which stay as
// they are until it is called again or `ordna_modify` returns. A negative number ends the call and
// changes nothing. It must return: no exception and no longjmp may leave it.
typedef int (*ordna_decide)(void *context, const ordna_slice *value, ordna_slice *next);

// A range of keys. All zeros is the range of all keys in ascending order.
typedef struct {
  // The lower end.
  ordna_slice lower;
  // The upper end.
  ordna_slice upper;
  // How the lower end counts: an `OrdnaBound`.
  int lower_bound;
  // How the upper end counts: an `OrdnaBound`.
  int upper_bound;
  // From large keys to small ones.
  bool reverse;
  // At most so many entries; 0: all.
  size_t limit;
} ordna_range;

// Gets an entry. The slices are valid during the call. Another result than 0 ends the scan. It
// must return: no exception and no longjmp may leave it.
typedef int (*ordna_visit)(void *context, ordna_slice key, ordna_slice value);

// Figures of a store. Exact while no other thread uses it.
typedef struct {
  // Number of keys. Expired ones count until they are removed.
  uint64_t keys;
  // Number of keys that were removed because their deadline had passed.
  uint64_t expired;
  // Number of entries with a deadline, and of states of such entries that snapshots see.
  uint64_t expiring;
  // Number of old states of keys, which live snapshots see or which are about to be freed.
  uint64_t old_states;
  // Bytes of the entries and their old states: what the memory limit bounds.
  uint64_t bytes;
  // The memory limit in bytes; 0: none.
  uint64_t memory_limit;
  // Number of live snapshots. A cursor and a transaction hold one each.
  uint64_t snapshots;
  // Age of the oldest live snapshot in milliseconds; 0: there is none.
  uint64_t oldest_snapshot;
  // Number of scans in progress.
  uint64_t scans;
} ordna_statistics;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Returns the text of the batch's last error, as `ordna_error` does for a store: of the last call
// that refused to add a write. An error of `ordna_write` is the store's.
size_t ordna_batch_error(const ordna_batch *batch, char *buffer, size_t capacity);

// Makes an empty batch.
int ordna_batch_new(ordna_batch **out);

// Frees a batch; null is ignored.
void ordna_batch_free(ordna_batch *batch);

// Number of writes.
size_t ordna_batch_len(const ordna_batch *batch);

// Will set the value of a key. Both are copied.
int ordna_batch_put(ordna_batch *batch, ordna_slice key, ordna_slice value);

// Will remove a key if it is present then. A key that is too long is absent.
int ordna_batch_remove(ordna_batch *batch, ordna_slice key);

// Makes a cursor before the first entry of the state of this moment, which does not change. Free it
// with `ordna_cursor_free`, before or after the store.
int ordna_cursor_open(const ordna_store *store, ordna_cursor **out);

// The same, over a snapshot.
int ordna_snapshot_cursor(const ordna_snapshot *snapshot, ordna_cursor **out);

// Frees a cursor; null is ignored, as is a cursor of the process that forked this one.
void ordna_cursor_free(ordna_cursor *cursor);

// As `ordna_error`.
size_t ordna_cursor_error(const ordna_cursor *cursor, char *buffer, size_t capacity);

// Moves before the first entry.
int ordna_cursor_start(ordna_cursor *cursor);

// Moves after the last entry.
int ordna_cursor_end(ordna_cursor *cursor);

// Moves before a key or, with `after`, after it; the key need not be there. So `ordna_cursor_next`
// then gives the ceiling of the key, and after a seek with `after`, `ordna_cursor_prev` the floor.
int ordna_cursor_seek(ordna_cursor *cursor, ordna_slice key, bool after);

// Moves before the entry at a position from the front, the first one at 0. `NOT_FOUND` if there are
// not as many: the cursor stays. As costly as `ordna_count`.
int ordna_cursor_select(ordna_cursor *cursor, size_t position);

// Moves after the next entry and gives it; `key` and `value` may be null. The slices are valid until
// the next call on the cursor. `NOT_FOUND` at the end.
int ordna_cursor_next(ordna_cursor *cursor,
                      ordna_slice *key,
                      ordna_slice *value);

// Moves before the previous entry and gives it, as `ordna_cursor_next`.
int ordna_cursor_prev(ordna_cursor *cursor, ordna_slice *key, ordna_slice *value);

// Calls `visit` with the value of each of `count` keys, in the order of `keys`, until it returns another
// number than 0; then `STOPPED`. The memory accesses of the keys overlap, so this is faster than as many
// calls of `ordna_get`. Each key is read at a moment of its own; those of a snapshot are of one moment.
// The callback may use the store.
int ordna_get_many(const ordna_store *store,
                   const ordna_slice *keys,
                   size_t count,
                   ordna_visit_value visit,
                   void *context);

// As `ordna_get_many`.
int ordna_snapshot_get_many(const ordna_snapshot *snapshot,
                            const ordna_slice *keys,
                            size_t count,
                            ordna_visit_value visit,
                            void *context);

// As `ordna_get_many`. The callback may use the transaction, but not commit or free it.
int ordna_transaction_get_many(const ordna_transaction *transaction,
                               const ordna_slice *keys,
                               size_t count,
                               ordna_visit_value visit,
                               void *context);

// Shows the value of a key to `decide` and does what it returns, as one step: no other write of the key
// comes between. If one does, `decide` is called again with the new value; after 100 times the answer is
// `CONFLICT`, and nothing is changed. `STOPPED` if `decide` returned a negative number. A value that is
// put keeps the deadline of the one that it replaces. The callback may use the store.
int ordna_modify(const ordna_store *store,
                 ordna_slice key,
                 ordna_decide decide,
                 void *context);

// Frees a snapshot; null is ignored, as is a snapshot of the process that forked this one.
void ordna_snapshot_free(ordna_snapshot *snapshot);

// As `ordna_error`.
size_t ordna_snapshot_error(const ordna_snapshot *snapshot, char *buffer, size_t capacity);

// Number of entries, exact.
size_t ordna_snapshot_len(const ordna_snapshot *snapshot);

// As `ordna_get`.
int ordna_snapshot_get(const ordna_snapshot *snapshot,
                       ordna_slice key,
                       uint8_t *buffer,
                       size_t capacity,
                       size_t *length);

// As `ordna_scan`.
int ordna_snapshot_scan(const ordna_snapshot *snapshot,
                        const ordna_range *range,
                        ordna_visit visit,
                        void *context);

// As `ordna_prefix`.
int ordna_snapshot_prefix(const ordna_snapshot *snapshot,
                          ordna_slice prefix,
                          bool reverse,
                          size_t limit,
                          ordna_visit visit,
                          void *context);

// As `ordna_count`.
int ordna_snapshot_count(const ordna_snapshot *snapshot, const ordna_range *range, size_t *count);

// As `ordna_count_prefix`.
int ordna_snapshot_count_prefix(const ordna_snapshot *snapshot, ordna_slice prefix, size_t *count);

// Writes the statistics of the store to `*statistics`. Unlike `ordna_memory` it passes no entries: O(1)
// for each live snapshot.
int ordna_statistics_of(const ordna_store *store,
                        ordna_statistics *statistics);

// The version of the library, as "0.1.0".
const char *ordna_version(void);

// Makes an empty store in memory. `memory_limit` is in bytes; 0: none.
int ordna_new(uint64_t memory_limit, ordna_store **out);

// Opens the store of a directory, which is made if it is not there. `sync` is an `OrdnaSync`. If
// it fails, `*out` is null and `error` (of `capacity` bytes, or null) gets the text.
int ordna_open(const char *path,
               int sync,
               uint64_t memory_limit,
               ordna_store **out,
               char *error,
               size_t capacity);

// Makes a store in memory of what a backup holds. Errors as in `ordna_open`.
int ordna_restore(const char *path,
                  uint64_t memory_limit,
                  ordna_store **out,
                  char *error,
                  size_t capacity);

// Frees a store; null is ignored. Its snapshots stay, and can be read and freed later. The directory of
// an opened store is free for others when the call returns. In a child of the process that made the
// store nothing is freed.
void ordna_free(ordna_store *store);

// Copies the text of this thread's last error, with a final zero, into `buffer` of `capacity` bytes.
// Returns the length of the whole text. The text is empty if the last call of this thread that failed
// was one on another handle.
size_t ordna_error(const ordna_store *store,
                   char *buffer,
                   size_t capacity);

// The same for this thread's last error on any handle, of any kind, or on none: a call on a null handle,
// or one that makes a handle.
size_t ordna_last_error(char *buffer,
                        size_t capacity);

// Number of entries; exact while nobody writes.
size_t ordna_len(const ordna_store *store);

// Sets the value of a key. After `ORDNA_STATUS_IO` the store may hold the value in memory: a log that
// failed at this write, or before it is durable, does not take it back. The other statuses of errors
// mean that nothing was changed; the same holds for every call that writes.
int ordna_put(const ordna_store *store,
              ordna_slice key,
              ordna_slice value);

// Sets the value of a key, which expires `milliseconds` from now. Every other call that sets a value
// makes an entry that does not expire, but for `ordna_compare_and_set` and `ordna_modify`, which keep the
// deadline.
int ordna_put_for(const ordna_store *store,
                  ordna_slice key,
                  ordna_slice value,
                  uint64_t milliseconds);

// Makes a key expire `milliseconds` from now; `UINT64_MAX`: never. `NOT_FOUND` if it is absent.
int ordna_expire(const ordna_store *store, ordna_slice key, uint64_t milliseconds);

// Writes the milliseconds until a key expires to `*milliseconds`; `UINT64_MAX`: never. `NOT_FOUND` if
// it is absent.
int ordna_expires_in(const ordna_store *store,
                     ordna_slice key,
                     uint64_t *milliseconds);

// Copies the value of a key into `buffer` of `capacity` bytes and writes its length to `*length`
// (which may be null). If it does not fit: `TOO_SMALL`, and nothing is copied. An absent key:
// `NOT_FOUND`.
int ordna_get(const ordna_store *store,
              ordna_slice key,
              uint8_t *buffer,
              size_t capacity,
              size_t *length);

// Removes a key; `NOT_FOUND` if it was absent, as a key is that is too long.
int ordna_remove(const ordna_store *store, ordna_slice key);

// Sets a key to `desired` if its value is `expected`, as one step. A null pointer stands for an
// absent key: it is expected to be absent, or is removed. `MISMATCH` if the value is another one.
int ordna_compare_and_set(const ordna_store *store,
                          ordna_slice key,
                          const ordna_slice *expected,
                          const ordna_slice *desired);

// Calls `visit` with the entries of a range (null: all), in order, until it returns another number
// than 0; then `STOPPED`. Entries that others write meanwhile may be given or not.
int ordna_scan(const ordna_store *store,
               const ordna_range *range,
               ordna_visit visit,
               void *context);

// The same for the keys that begin with `prefix`; at most `limit` entries, 0: all.
int ordna_prefix(const ordna_store *store,
                 ordna_slice prefix,
                 bool reverse,
                 size_t limit,
                 ordna_visit visit,
                 void *context);

// Removes all keys of a range (null: all; direction and limit do not count) and writes their
// number to `*removed` (which may be null).
int ordna_remove_range(const ordna_store *store, const ordna_range *range, size_t *removed);

// Removes all keys that begin with `prefix`, as `ordna_remove_range`.
int ordna_remove_prefix(const ordna_store *store, ordna_slice prefix, size_t *removed);

// Applies the writes of a batch in their order and empties it. Every snapshot holds all of them or
// none. If it fails, the batch stays as it is, and nothing is applied, but for `ORDNA_STATUS_IO` as in
// `ordna_put`.
int ordna_write(const ordna_store *store,
                ordna_batch *batch);

// Takes a snapshot: the state of this moment, which does not change. O(1), whatever the number of
// entries. Free it with `ordna_snapshot_free`, before or after the store.
int ordna_snapshot_take(const ordna_store *store, ordna_snapshot **out);

// Writes the number of keys of a range (null: all; direction and limit do not count) to `*count`,
// exact. The rank of a key is the number of keys below it. O(log n), and O(1) for each leaf within.
int ordna_count(const ordna_store *store, const ordna_range *range, size_t *count);

// The same for the keys that begin with `prefix`.
int ordna_count_prefix(const ordna_store *store, ordna_slice prefix, size_t *count);

// Makes all writes so far durable, whatever the store's `OrdnaSync`. At once in a store in memory.
int ordna_sync(const ordna_store *store);

// Backs up the state of this moment into the directory `path`, which must not exist; null: into
// the directory of an opened store, whose log begins anew.
int ordna_backup(const ordna_store *store, const char *path);

// Bytes that the store holds. O(n).
size_t ordna_memory(const ordna_store *store);

// Begins a transaction. It reads the state of this moment and its own writes. Free it with
// `ordna_transaction_free`, before the store.
int ordna_begin(const ordna_store *store, ordna_transaction **out);

// Frees a transaction, and forgets its writes if it was not committed; null is ignored, as is a
// transaction of the process that forked this one.
void ordna_transaction_free(ordna_transaction *transaction);

// As `ordna_error`.
size_t ordna_transaction_error(const ordna_transaction *transaction, char *buffer, size_t capacity);

// As `ordna_get`.
int ordna_transaction_get(const ordna_transaction *transaction,
                          ordna_slice key,
                          uint8_t *buffer,
                          size_t capacity,
                          size_t *length);

// As `ordna_scan`. The callback may use the transaction, but not commit or free it.
int ordna_transaction_scan(const ordna_transaction *transaction,
                           const ordna_range *range,
                           ordna_visit visit,
                           void *context);

// Sets the value of a key when the transaction commits.
int ordna_transaction_put(const ordna_transaction *transaction, ordna_slice key, ordna_slice value);

// The same; the entry expires `milliseconds` from now.
int ordna_transaction_put_for(const ordna_transaction *transaction,
                              ordna_slice key,
                              ordna_slice value,
                              uint64_t milliseconds);

// Removes a key when the transaction commits; `NOT_FOUND` if it is absent.
int ordna_transaction_remove(const ordna_transaction *transaction, ordna_slice key);

// Applies the writes as one step, if all that the transaction has read is as it was: values, absent
// keys, entries of ranges. `CONFLICT` if it is not: nothing is changed, and the caller may begin
// another one. The transaction has ended; it is still to be freed. A transaction can commit for a
// minute; later ones are `INVALID`. Otherwise errors are those of `ordna_write`.
int ordna_transaction_commit(const ordna_transaction *transaction);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* ORDNA_H */
