/* The C interface with which `ordna-bench` measures any index.
 *
 * Build a shared library that exports every function below, and pass it to the benchmark:
 *
 *     cc -O2 -shared -fPIC -I include -o libfoo.so foo.c
 *     ordna-bench run --peer-lib ./libfoo.so --index foo,locked --threads 1,2
 *
 * The name of the index is that of ordna_peer_name(). The index maps keys to 64-bit words. It is
 * measured with the same keys, workloads and checks as every other index. Its cell is `wrong` after
 * a wrong answer, and `n/a` for an operation that it does not support.
 *
 * Threads: ordna_peer_create() and ordna_peer_destroy() are called by one thread while no other
 * function runs on that index. Every other thread calls ordna_peer_thread_init() first, passes the
 * result to its operations, and calls ordna_peer_thread_fini() last. Operations of different
 * threads run concurrently. Several indexes may exist one after the other, but never two at the
 * same time.
 *
 * Errors: no function may throw, longjmp or exit. Output of the library is shown on the terminal.
 *
 * Memory: bytes per key are measured in the benchmark's own allocator, which the library does not
 * use. So this column is empty, and only the resident set is reported.
 */
#ifndef ORDNA_PEER_H
#define ORDNA_PEER_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version of this interface. */
#define ORDNA_PEER_ABI 1u

/* The types of keys. */
enum {
    /* `key` points to an aligned uint64_t in the machine's byte order, `len` is 8. The order of
     * keys is the order of numbers. */
    ORDNA_PEER_U64 = 0,
    /* `key` points to `len` bytes of any content, 0 to 65535 of them, not terminated. The order of
     * keys is that of memcmp; of two keys that are equal up to the end of the shorter, the shorter
     * comes first. */
    ORDNA_PEER_BYTES = 1
};

/* The results of operations. */
enum {
    /* Success. put: the key was new. get, remove: the key was present. */
    ORDNA_PEER_OK = 0,
    /* put: the value of an existing key was replaced. get, remove: the key was absent. */
    ORDNA_PEER_OTHER = 1,
    /* The index does not support the operation. Each operation is tried once before the run. */
    ORDNA_PEER_UNSUPPORTED = 2,
    /* The operation failed, for example for lack of memory. This counts as a wrong answer. */
    ORDNA_PEER_FAILED = 3
};

/* An index, and the state of one thread. The library defines both. */
typedef struct ordna_peer ordna_peer;
typedef struct ordna_peer_thread ordna_peer_thread;

/* Receives the entries of a scan in ascending order. `key` and `len` are as in the operations, and
 * need to be valid only during the call. Returns 0 to end the scan. */
typedef int (*ordna_peer_visit)(void *context, const void *key, size_t len, uint64_t value);

/* Returns the ORDNA_PEER_ABI with which the library was compiled. Other versions are refused. */
uint32_t ordna_peer_abi(void);

/* Returns the name on the command line and in the results: a string that lives as long as the
 * library, without spaces, commas and plus signs. */
const char *ordna_peer_name(void);

/* Creates an empty index for this type of keys and up to `max_threads` concurrent threads. Returns
 * NULL if the index does not support this; its cell is then `n/a`. */
ordna_peer *ordna_peer_create(int key_kind, uint32_t max_threads);

/* Frees the index and everything in it. */
void ordna_peer_destroy(ordna_peer *peer);

/* Called on each thread before its first operation. May return NULL if there is no state. */
ordna_peer_thread *ordna_peer_thread_init(ordna_peer *peer);

/* Called on each thread after its last operation, with the result of ordna_peer_thread_init(). */
void ordna_peer_thread_fini(ordna_peer *peer, ordna_peer_thread *thread);

/* Sets the value of a key, which the index must copy. Returns ORDNA_PEER_OK if the key was new, and
 * ORDNA_PEER_OTHER if its value was replaced. */
int ordna_peer_put(ordna_peer *peer, ordna_peer_thread *thread, const void *key, size_t len,
                   uint64_t value);

/* Writes the value of a key to `*value`. Returns ORDNA_PEER_OTHER if the key is absent. */
int ordna_peer_get(ordna_peer *peer, ordna_peer_thread *thread, const void *key, size_t len,
                   uint64_t *value);

/* Removes a key. Returns ORDNA_PEER_OTHER if the key is absent. */
int ordna_peer_remove(ordna_peer *peer, ordna_peer_thread *thread, const void *key, size_t len);

/* Calls `visit` with up to `limit` entries whose keys are `from` or above, in ascending order,
 * until it returns 0. */
int ordna_peer_scan(ordna_peer *peer, ordna_peer_thread *thread, const void *from, size_t len,
                    size_t limit, ordna_peer_visit visit, void *context);

#ifdef __cplusplus
}
#endif

#endif
