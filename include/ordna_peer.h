/* The door for any index into `ordna-bench`.
 *
 * Build a shared library that exports every function below and give it to the benchmark:
 *
 *     cc -O2 -shared -fPIC -I include -o libfoo.so foo.c
 *     ordna-bench run --peer-lib ./libfoo.so --index foo,locked --threads 1,2
 *
 * The index takes its name from ordna_peer_name(). It maps keys to 64-bit words. It runs through
 * the same keys, workloads and checks as every other index: a wrong answer gives `wrong` in its
 * cell, an operation that it does not support gives `n/a`.
 *
 * Threads: ordna_peer_create() and ordna_peer_destroy() are called by one thread while no other
 * function runs on that index. Every other thread calls ordna_peer_thread_init() first, passes what
 * it got to its operations, and calls ordna_peer_thread_fini() last. Operations of different threads
 * run at the same time. Several indexes may exist one after the other, never two at once.
 *
 * Errors: no function may throw, longjmp or exit. What the library prints goes to the terminal.
 *
 * Memory: bytes per key come from the benchmark's own allocator, which the library does not use;
 * its column stays empty, and the resident set speaks for it.
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

/* What the keys of an index are. */
enum {
    /* `key` points to an aligned uint64_t in the machine's byte order, `len` is 8. The order of
     * keys is the order of numbers. */
    ORDNA_PEER_U64 = 0,
    /* `key` points to `len` bytes of any content, 0 to 65535 of them, not terminated. The order of
     * keys is that of memcmp; of two keys that are equal up to the end of the shorter, the shorter
     * comes first. */
    ORDNA_PEER_BYTES = 1
};

/* What an operation answers. */
enum {
    /* Done: the key was new (put), was there (get, remove), the scan ran (scan). */
    ORDNA_PEER_OK = 0,
    /* put: the key was there and its value is replaced. get, remove: the key was not there. */
    ORDNA_PEER_OTHER = 1,
    /* The index has no such operation. Asked once for each operation before the run. */
    ORDNA_PEER_UNSUPPORTED = 2,
    /* It failed, for example for lack of memory. Counts as a wrong answer. */
    ORDNA_PEER_FAILED = 3
};

/* One index, and what one thread keeps: both are the library's own. */
typedef struct ordna_peer ordna_peer;
typedef struct ordna_peer_thread ordna_peer_thread;

/* Receives the entries of a scan in ascending order. `key` and `len` are as in the operations, and
 * need to be valid only during the call. Returns 0 when it wants no more. */
typedef int (*ordna_peer_visit)(void *context, const void *key, size_t len, uint64_t value);

/* Returns ORDNA_PEER_ABI as the library was compiled with. Another version is refused. */
uint32_t ordna_peer_abi(void);

/* The name on the command line and in the results: a string that lives as long as the library,
 * without spaces, commas and plus signs. */
const char *ordna_peer_name(void);

/* Makes an empty index for this kind of keys and at most so many threads at a time. NULL if the
 * index does not take such keys or so many threads; the cell then says `n/a`. */
ordna_peer *ordna_peer_create(int key_kind, uint32_t max_threads);

/* Frees the index and everything in it. */
void ordna_peer_destroy(ordna_peer *peer);

/* Called on each thread before its first operation. May return NULL if there is nothing to keep. */
ordna_peer_thread *ordna_peer_thread_init(ordna_peer *peer);

/* Called on each thread after its last operation, with what ordna_peer_thread_init() returned. */
void ordna_peer_thread_fini(ordna_peer *peer, ordna_peer_thread *thread);

/* Sets the value of a key, which the index must copy. ORDNA_PEER_OK if the key was new,
 * ORDNA_PEER_OTHER if its value was replaced. */
int ordna_peer_put(ordna_peer *peer, ordna_peer_thread *thread, const void *key, size_t len,
                   uint64_t value);

/* Writes the value of a key to `*value`. ORDNA_PEER_OTHER if the key is absent. */
int ordna_peer_get(ordna_peer *peer, ordna_peer_thread *thread, const void *key, size_t len,
                   uint64_t *value);

/* Removes a key. ORDNA_PEER_OTHER if the key is absent. */
int ordna_peer_remove(ordna_peer *peer, ordna_peer_thread *thread, const void *key, size_t len);

/* Calls `visit` with at most `limit` entries whose keys are `from` or above, in ascending order,
 * until it returns 0. */
int ordna_peer_scan(ordna_peer *peer, ordna_peer_thread *thread, const void *from, size_t len,
                    size_t limit, ordna_peer_visit visit, void *context);

#ifdef __cplusplus
}
#endif

#endif
