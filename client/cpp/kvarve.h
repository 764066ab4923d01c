/* libkvarve for C: put and get prefix KV through the kvarved of this host (client/cpp/client.h
 * explains the whole).
 *
 * Handles are opaque. Functions answer a kvarve_code and never throw; when it is not KVARVE_OK, and
 * `error` is not null, `error->text` says why. A miss is an answer (0 blocks), not an error. Keys
 * are packed: `count` keys of the namespace's key_bytes, one after the other. A null where
 * something is needed is KVARVE_INVALID_ARGUMENT; functions without a code answer 0 or null for it.
 *
 * Structures begin with their own size, which the caller writes, and may grow at their end in later
 * versions: `kvarve_options options = {.size = sizeof(options)};` has zeros for all the rest. A
 * program that was built with an earlier kvarve.h works with a later library. The other way round
 * it works as long as it uses nothing new; else it is refused (KVARVE_INVALID_ARGUMENT).
 *
 * `cmake --install` puts this file to <kvarve/kvarve.h>, beside libkvarve.so and its pkg-config
 * file; the library exports what stands here and nothing else. It speaks to the kvarved of this
 * host only.
 *
 * THREADS: any; calls of several threads on one client take turns.  BLOCKS: up to the client's
 * time-outs.
 */
#ifndef KVARVE_CLIENT_CPP_KVARVE_H_
#define KVARVE_CLIENT_CPP_KVARVE_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum kvarve_code { /* absl::StatusCode, by number */
                           KVARVE_OK = 0,
                           KVARVE_CANCELLED = 1,
                           KVARVE_UNKNOWN = 2,
                           KVARVE_INVALID_ARGUMENT = 3,
                           KVARVE_DEADLINE_EXCEEDED = 4,
                           KVARVE_NOT_FOUND = 5,
                           KVARVE_ALREADY_EXISTS = 6,
                           KVARVE_PERMISSION_DENIED = 7,
                           KVARVE_RESOURCE_EXHAUSTED = 8,
                           KVARVE_FAILED_PRECONDITION = 9,
                           KVARVE_ABORTED = 10,
                           KVARVE_OUT_OF_RANGE = 11,
                           KVARVE_UNIMPLEMENTED = 12,
                           KVARVE_INTERNAL = 13,
                           KVARVE_UNAVAILABLE = 14,
                           KVARVE_DATA_LOSS = 15,
                           KVARVE_UNAUTHENTICATED = 16
} kvarve_code;

#define KVARVE_ERROR_BYTES 512
typedef struct kvarve_error {
  char text[KVARVE_ERROR_BYTES]; /* cut if longer; always ends with a zero */
} kvarve_error;

typedef struct kvarve_client kvarve_client;
typedef struct kvarve_view kvarve_view;
typedef uint32_t kvarve_namespace;

/* Zeros and nulls mean the defaults. */
typedef struct kvarve_options {
  size_t size;           /* sizeof(kvarve_options) */
  const char* endpoint;  /* KVARVE_ENDPOINT, else "unix:///run/kvarve/kvarved.sock" */
  const char* engine_id; /* processes of one engine share their leases' end */
  const char* client_name;
  uint32_t role; /* 0 tool, 1 scheduler, 2 worker */
  uint16_t dp_rank, pp_rank, tp_rank;
  int no_staging; /* this process never puts */
  uint64_t staging_bytes;
  uint64_t timeout_us; /* of lookups and acquires */
  uint64_t put_timeout_us;
} kvarve_options;

/* Fails for a bad endpoint or option only: a client joins a daemon whenever one appears. */
kvarve_code kvarve_open(const kvarve_options* options, kvarve_client** client, kvarve_error* error);
/* Null is fine. Views of it must be closed before. */
void kvarve_close(kvarve_client* client);
/* Waits until connected and all namespaces are open. */
kvarve_code kvarve_wait_ready(kvarve_client* client, uint64_t timeout_us, kvarve_error* error);

typedef struct kvarve_state {
  size_t size; /* sizeof(kvarve_state), before the call; no more than that is written */
  int connected, breaker_open;
  uint64_t incarnation; /* of the daemon; 0: not connected */
  uint64_t timeouts, reconnects, checksum_mismatches;
  char daemon_version[64];
  char last_error[KVARVE_ERROR_BYTES];
} kvarve_state;
kvarve_code kvarve_get_state(const kvarve_client* client, kvarve_state* state);

typedef enum kvarve_element_type {
  KVARVE_OPAQUE = 0, /* blocks are bytes whose inside only the engine knows */
  KVARVE_BF16 = 1,
  KVARVE_FP16 = 2,
  KVARVE_FP32 = 3,
  KVARVE_FP8_E4M3 = 4,
  KVARVE_FP8_E5M2 = 5,
  KVARVE_INT8 = 6
} kvarve_element_type;

/* Everything that must match for blocks to be reusable (docs/formats.md 1). Needed: model_digest
 * and block_bytes. A null is an empty text; zeros of counts mean what stands beside them. */
typedef struct kvarve_descriptor {
  size_t size; /* sizeof(kvarve_descriptor) */
  const char* model;
  const char* model_digest; /* of the weights and what changes them */
  const char* tokenizer_digest;
  kvarve_element_type element_type;
  uint32_t layer_begin, layer_count, layer_total; /* 0: all of them, of 1 */
  uint32_t kv_head_begin, kv_head_count, kv_head_total;
  uint32_t k_dim, v_dim; /* 0 for KVARVE_OPAQUE */
  uint32_t block_tokens; /* 0: 1 */
  uint64_t block_bytes;
  uint32_t key_bytes;       /* 16 or 32; 0: 32 */
  const char* hash_version; /* how keys are made; null: "kvarve-chain-1" */
  const char* adapter_digest;
  const char* attention_backend;
  const char* kv_scales;
  uint64_t generation;
  const char* client_salt;
  const char* const* extra; /* name, value, name, value ... */
  size_t extra_count;       /* of pairs */
} kvarve_descriptor;

#define KVARVE_DESCRIPTOR_BYTES_MAX 16384
/* Writes the canonical descriptor, at most `capacity` bytes of it, and its size.
 * KVARVE_INVALID_ARGUMENT names the field that is wrong; KVARVE_OUT_OF_RANGE: `capacity` is less.
 */
kvarve_code kvarve_describe(const kvarve_descriptor* descriptor, void* bytes, size_t capacity,
                            size_t* size, kvarve_error* error);

/* Opens a namespace by its canonical descriptor (kvarve_describe), the client's part of it. */
kvarve_code kvarve_open_namespace(kvarve_client* client, const void* descriptor,
                                  size_t descriptor_bytes, kvarve_namespace* ns,
                                  kvarve_error* error);
/* 0: no such namespace. */
uint64_t kvarve_block_bytes(const kvarve_client* client, kvarve_namespace ns);
uint32_t kvarve_key_bytes(const kvarve_client* client, kvarve_namespace ns);

/* How many leading keys are found. `hold_us` > 0 keeps them so long; `hold` (may be null) ends it
 * early. */
kvarve_code kvarve_lookup(kvarve_client* client, kvarve_namespace ns, const void* keys,
                          size_t count, uint64_t hold_us, size_t* found, uint64_t* hold,
                          kvarve_error* error);

/* Has the daemon bring the leading blocks found into memory, and waits for none of them. `started`
 * (may be null): of those found, how many are on their way. */
kvarve_code kvarve_prefetch(kvarve_client* client, kvarve_namespace ns, const void* keys,
                            size_t count, uint64_t request_id, size_t* found, size_t* started,
                            kvarve_error* error);

/* Copies the leading blocks found to `blocks[i]`, block_bytes each, verified. */
kvarve_code kvarve_get(kvarve_client* client, kvarve_namespace ns, const void* keys, size_t count,
                       void* const* blocks, uint64_t request_id, size_t* copied,
                       kvarve_error* error);

typedef enum kvarve_outcome {
  KVARVE_STORED = 0,
  KVARVE_EXISTS = 1,
  KVARVE_REJECTED_PARENT = 2,
  KVARVE_REJECTED_NO_SPACE = 3,
  KVARVE_REJECTED_POLICY = 4,
  KVARVE_REJECTED_INVALIDATED = 5,
  KVARVE_REJECTED_QUOTA = 6,
  KVARVE_SHED = 7 /* the daemon's devices could not keep up within the put's time */
} kvarve_outcome;
/* Puts one chain, each block the parent of the next; `parent` (one key, or null) is the first
 * one's, at depth `first_depth` - 1. Writes one kvarve_outcome a block. */
kvarve_code kvarve_put(kvarve_client* client, kvarve_namespace ns, const void* parent,
                       uint32_t first_depth, const void* keys, size_t count,
                       const void* const* blocks, uint64_t request_id, uint8_t* outcomes,
                       kvarve_error* error);

/* Leases the leading blocks found and shows them in place, until the view is closed; the memory
 * stays what it is whatever the daemon does. Beyond the lease cap a view is empty, and kvarve_get
 * still works. */
kvarve_code kvarve_acquire(kvarve_client* client, kvarve_namespace ns, const void* keys,
                           size_t count, uint64_t request_id, kvarve_view** view,
                           kvarve_error* error);
size_t kvarve_view_size(const kvarve_view* view);
/* 1: more was found than may be read in place now. */
int kvarve_view_over_lease_cap(const kvarve_view* view);
/* Null beyond the view's size, and in a forked child, which has no such memory. */
const void* kvarve_view_block(const kvarve_view* view, size_t i);
uint64_t kvarve_view_checksum(const kvarve_view* view, size_t i);
/* Releases the lease. Null is fine. */
void kvarve_view_close(kvarve_view* view);

/* Ends a hold. */
void kvarve_release(kvarve_client* client, uint64_t hold);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* KVARVE_CLIENT_CPP_KVARVE_H_ */
