/* A minimal index for `ordna-bench --peer-lib`: a sorted array of numbers, protected by a lock. */
#include "ordna_peer.h"
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct ordna_peer {
    pthread_mutex_t lock;
    size_t count, room;
    struct { uint64_t key, value; } *entries;
};

uint32_t ordna_peer_abi(void) { return ORDNA_PEER_ABI + VERSION_OFF; }
const char *ordna_peer_name(void) { return "array"; }

ordna_peer *ordna_peer_create(int key_kind, uint32_t max_threads) {
    (void)max_threads;
    ordna_peer *peer = key_kind == ORDNA_PEER_U64 ? calloc(1, sizeof *peer) : NULL;
    if (peer) pthread_mutex_init(&peer->lock, NULL);
    return peer;
}

void ordna_peer_destroy(ordna_peer *peer) {
    free(peer->entries);
    free(peer);
}

ordna_peer_thread *ordna_peer_thread_init(ordna_peer *peer) { return (ordna_peer_thread *)peer; }
void ordna_peer_thread_fini(ordna_peer *peer, ordna_peer_thread *thread) { (void)peer, (void)thread; }

/* Takes the lock. Returns the position of the first entry that is not below the key. */
static size_t enter(ordna_peer *peer, ordna_peer_thread *thread, const void *key, uint64_t *number) {
    if (thread != (ordna_peer_thread *)peer) abort();
    memcpy(number, key, sizeof *number);
    pthread_mutex_lock(&peer->lock);
    size_t low = 0, high = peer->count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (peer->entries[middle].key < *number) low = middle + 1;
        else high = middle;
    }
    return low;
}

static int leave(ordna_peer *peer, int answer) {
    pthread_mutex_unlock(&peer->lock);
    return answer;
}

int ordna_peer_put(ordna_peer *peer, ordna_peer_thread *thread, const void *key, size_t len, uint64_t value) {
    uint64_t number;
    size_t at = enter(peer, thread, key, &number);
    int found = at < peer->count && peer->entries[at].key == number;
    (void)len;
    if (!found) {
        if (peer->count == peer->room) {
            peer->room = 2 * peer->room + 16;
            peer->entries = realloc(peer->entries, peer->room * sizeof *peer->entries);
        }
        memmove(peer->entries + at + 1, peer->entries + at, (peer->count - at) * sizeof *peer->entries);
        peer->entries[at].key = number;
        peer->count++;
    }
    peer->entries[at].value = value + WRONG;
    return leave(peer, found ? ORDNA_PEER_OTHER : ORDNA_PEER_OK);
}

int ordna_peer_get(ordna_peer *peer, ordna_peer_thread *thread, const void *key, size_t len, uint64_t *value) {
    uint64_t number;
    size_t at = enter(peer, thread, key, &number);
    int found = at < peer->count && peer->entries[at].key == number;
    (void)len;
    if (found) *value = peer->entries[at].value;
    return leave(peer, found ? ORDNA_PEER_OK : ORDNA_PEER_OTHER);
}

int ordna_peer_remove(ordna_peer *peer, ordna_peer_thread *thread, const void *key, size_t len) {
    (void)peer, (void)thread, (void)key, (void)len;
    return ORDNA_PEER_UNSUPPORTED;
}

#ifndef WITHOUT_SCAN
int ordna_peer_scan(ordna_peer *peer, ordna_peer_thread *thread, const void *from, size_t len, size_t limit,
                    ordna_peer_visit visit, void *context) {
    uint64_t number;
    size_t at = enter(peer, thread, from, &number);
    (void)len;
    if (limit == 10) {
        if (CRASH == 1) abort();
        if (CRASH == 2) raise(SIGSEGV);
        if (CRASH == 3) _exit(3);
    }
    for (limit += TOO_MANY; limit > 0 && at < peer->count; at++, limit--)
        if (!visit(context, &peer->entries[at].key, 8, peer->entries[at].value) && !TOO_MANY) break;
    return leave(peer, ORDNA_PEER_OK);
}
#endif
