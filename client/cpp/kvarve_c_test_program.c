/* A C program's use of libkvarve, compiled as C; kvarve_c_test.cc runs it. Returns 0, or the line
 * that failed. */
#include <stdlib.h>
#include <string.h>

#include "client/cpp/kvarve.h"

#define EXPECT(condition)              \
  do {                                 \
    if (!(condition)) return __LINE__; \
  } while (0)

enum { kBlocks = 3, kBlockBytes = 4096, kWaitMicros = 60000000 };

static int UseBlocks(kvarve_client* client, kvarve_namespace ns, const unsigned char* keys) {
  kvarve_error error;
  unsigned char* memory = malloc(2 * kBlocks * kBlockBytes);
  const void* sources[kBlocks];
  void* destinations[kBlocks];
  uint8_t outcomes[kBlocks];
  size_t found = 0, copied = 0, started = 7;
  uint64_t hold = 0;
  kvarve_view* view = NULL;
  int i;
  for (i = 0; i < kBlocks; ++i) {
    memset(memory + i * kBlockBytes, 'a' + i, kBlockBytes);
    sources[i] = memory + i * kBlockBytes;
    destinations[i] = memory + (kBlocks + i) * kBlockBytes;
  }
  EXPECT(kvarve_put(client, ns, NULL, 0, keys, 2, sources, 1, outcomes, &error) == KVARVE_OK);
  EXPECT(outcomes[0] == KVARVE_STORED && outcomes[1] == KVARVE_STORED);
  EXPECT(kvarve_put(client, ns, keys + 32, 2, keys + 64, 1, sources + 2, 1, outcomes, &error) ==
         KVARVE_OK);
  EXPECT(kvarve_put(client, ns, NULL, 0, keys, 1, sources, 1, outcomes, NULL) == KVARVE_OK);
  EXPECT(outcomes[0] == KVARVE_EXISTS);
  EXPECT(kvarve_lookup(client, ns, keys, kBlocks, 1000000, &found, &hold, &error) == KVARVE_OK);
  EXPECT(found == kBlocks && hold != 0);
  kvarve_release(client, hold);
  EXPECT(kvarve_prefetch(client, ns, keys, kBlocks, 1, &found, &started, &error) == KVARVE_OK);
  EXPECT(found == kBlocks && started == 0);
  EXPECT(kvarve_prefetch(client, ns, keys, 2, 1, &found, NULL, &error) == KVARVE_OK);
  EXPECT(found == 2);
  EXPECT(kvarve_get(client, ns, keys, kBlocks, destinations, 1, &copied, &error) == KVARVE_OK);
  EXPECT(copied == kBlocks);
  EXPECT(memcmp(memory, memory + kBlocks * kBlockBytes, kBlocks * kBlockBytes) == 0);
  EXPECT(kvarve_acquire(client, ns, keys, kBlocks, 1, &view, &error) == KVARVE_OK);
  EXPECT(kvarve_view_size(view) == kBlocks);
  for (i = 0; i < kBlocks; ++i) {
    EXPECT(memcmp(kvarve_view_block(view, (size_t)i), sources[i], kBlockBytes) == 0);
    EXPECT(kvarve_view_checksum(view, (size_t)i) != 0);
  }
  EXPECT(kvarve_view_block(view, kBlocks) == NULL);
  EXPECT(kvarve_view_checksum(view, kBlocks) == 0);
  kvarve_view_close(view);
  free(memory);
  return 0;
}

int RunCProgram(const char* endpoint, const void* descriptor, size_t descriptor_bytes,
                const unsigned char* keys) {
  kvarve_options options = {.size = sizeof(options)};
  kvarve_error error;
  kvarve_state state = {.size = sizeof(state)};
  kvarve_client* client = NULL;
  kvarve_namespace ns = 0;
  size_t found = 0;
  int line;
  options.endpoint = "tcp://nowhere";
  EXPECT(kvarve_open(&options, &client, &error) == KVARVE_INVALID_ARGUMENT);
  EXPECT(client == NULL && strstr(error.text, "tcp://nowhere") != NULL);
  options.role = 9;
  EXPECT(kvarve_open(&options, &client, NULL) == KVARVE_INVALID_ARGUMENT);
  options.role = 1;
  options.endpoint = endpoint;
  options.engine_id = "c-program";
  options.staging_bytes = 1 << 20;
  options.timeout_us = options.put_timeout_us = kWaitMicros;
  EXPECT(kvarve_open(&options, &client, &error) == KVARVE_OK);
  EXPECT(kvarve_open_namespace(client, descriptor, descriptor_bytes - 1, &ns, &error) ==
         KVARVE_INVALID_ARGUMENT);
  EXPECT(strlen(error.text) > 0);
  EXPECT(kvarve_open_namespace(client, descriptor, descriptor_bytes, &ns, &error) == KVARVE_OK);
  EXPECT(kvarve_wait_ready(client, kWaitMicros, &error) == KVARVE_OK);
  EXPECT(kvarve_block_bytes(client, ns) == kBlockBytes && kvarve_key_bytes(client, ns) == 32);
  EXPECT(kvarve_block_bytes(client, ns + 1) == 0);
  EXPECT(kvarve_lookup(client, ns + 1, keys, 1, 0, &found, NULL, &error) ==
         KVARVE_INVALID_ARGUMENT);
  line = UseBlocks(client, ns, keys);
  if (line != 0) return line;
  EXPECT(kvarve_get_state(client, &state) == KVARVE_OK);
  EXPECT(state.connected && !state.breaker_open && state.incarnation == 1);
  EXPECT(strcmp(state.daemon_version, "fake") == 0 && state.last_error[0] == '\0');
  kvarve_close(client);
  kvarve_close(NULL);
  kvarve_view_close(NULL);
  return 0;
}

/* Nulls cost an error, not the process. */
int RunWithNulls(const char* endpoint, const void* descriptor, size_t descriptor_bytes,
                 const unsigned char* keys) {
  kvarve_options options = {.size = sizeof(options)};
  kvarve_error error;
  kvarve_client* client = NULL;
  kvarve_namespace ns = 0;
  kvarve_view* view = NULL;
  const void* no_sources[1] = {NULL};
  void* no_destinations[1] = {NULL};
  uint8_t outcome;
  size_t size = 0;
  const kvarve_code bad = KVARVE_INVALID_ARGUMENT;
  options.endpoint = endpoint;
  options.timeout_us = options.put_timeout_us = kWaitMicros;
  EXPECT(kvarve_open(&options, NULL, &error) == bad && strstr(error.text, "client") != NULL);
  EXPECT(kvarve_open(&options, NULL, NULL) == bad);
  EXPECT(kvarve_open(&options, &client, &error) == KVARVE_OK);
  EXPECT(kvarve_open_namespace(client, NULL, 10, &ns, &error) == bad);
  EXPECT(kvarve_open_namespace(client, descriptor, descriptor_bytes, NULL, &error) == bad);
  EXPECT(kvarve_open_namespace(NULL, descriptor, descriptor_bytes, &ns, &error) == bad);
  EXPECT(kvarve_open_namespace(client, descriptor, descriptor_bytes, &ns, &error) == KVARVE_OK);
  EXPECT(kvarve_wait_ready(NULL, 1, &error) == bad);
  EXPECT(kvarve_wait_ready(client, kWaitMicros, &error) == KVARVE_OK);
  EXPECT(kvarve_get_state(client, NULL) == bad);
  EXPECT(kvarve_block_bytes(NULL, ns) == 0 && kvarve_key_bytes(NULL, ns) == 0);
  EXPECT(kvarve_lookup(client, ns, keys, 1, 0, NULL, NULL, &error) == bad);
  EXPECT(kvarve_lookup(client, ns, NULL, 1, 0, &size, NULL, &error) == bad);
  EXPECT(kvarve_prefetch(client, ns, keys, 1, 0, NULL, &size, &error) == bad);
  EXPECT(kvarve_prefetch(client, ns, NULL, 1, 0, &size, NULL, &error) == bad);
  EXPECT(kvarve_get(client, ns, keys, 1, NULL, 0, &size, &error) == bad);
  EXPECT(kvarve_get(client, ns, keys, 1, no_destinations, 0, &size, &error) == bad);
  EXPECT(kvarve_get(client, ns, keys, 1, no_destinations, 0, NULL, &error) == bad);
  EXPECT(kvarve_put(client, ns, NULL, 0, keys, 1, no_sources, 0, &outcome, &error) == bad);
  EXPECT(kvarve_put(client, ns, NULL, 0, keys, 1, NULL, 0, &outcome, &error) == bad);
  EXPECT(kvarve_put(client, ns, NULL, 0, keys, 1, no_sources, 0, NULL, &error) == bad);
  EXPECT(kvarve_acquire(client, ns, keys, 1, 0, NULL, &error) == bad);
  EXPECT(kvarve_acquire(NULL, ns, keys, 1, 0, &view, &error) == bad);
  EXPECT(kvarve_view_size(NULL) == 0 && kvarve_view_block(NULL, 0) == NULL);
  EXPECT(kvarve_view_checksum(NULL, 0) == 0 && kvarve_view_over_lease_cap(NULL) == 0);
  kvarve_release(NULL, 1);
  kvarve_close(client);
  return 0;
}
