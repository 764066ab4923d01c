/* A C program of somebody who installed kvarve: installed_test.py compiles it against the installed
 * tree and runs it with a daemon's endpoint. Ends with 0, or says which line failed. */
#include <kvarve/kvarve.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPECT(condition)                                                     \
  do {                                                                        \
    if (!(condition)) {                                                       \
      fprintf(stderr, "line %d: %s: %s\n", __LINE__, #condition, error.text); \
      exit(1);                                                                \
    }                                                                         \
  } while (0)

enum { kBlocks = 3, kBlockBytes = 8192, kKeyBytes = 16, kWaitMicros = 60000000 };

static kvarve_error error;

static void Describe(unsigned char* bytes, size_t* size) {
  static const char* const kExtra[] = {"rope", "10000", "quantization", "none"};
  kvarve_descriptor descriptor;
  memset(&descriptor, 0, sizeof(descriptor));
  descriptor.size = sizeof(descriptor);
  EXPECT(kvarve_describe(&descriptor, bytes, KVARVE_DESCRIPTOR_BYTES_MAX, size, &error) ==
         KVARVE_INVALID_ARGUMENT);
  EXPECT(strstr(error.text, "model_digest") != NULL);
  descriptor.model = "a model";
  descriptor.model_digest = "sha256:0123";
  descriptor.block_bytes = kBlockBytes;
  descriptor.key_bytes = kKeyBytes;
  descriptor.extra = kExtra;
  descriptor.extra_count = 2;
  EXPECT(kvarve_describe(&descriptor, bytes, 10, size, &error) == KVARVE_OUT_OF_RANGE);
  EXPECT(*size > 10);
  EXPECT(kvarve_describe(NULL, bytes, 10, size, &error) == KVARVE_INVALID_ARGUMENT);
  EXPECT(kvarve_describe(&descriptor, bytes, KVARVE_DESCRIPTOR_BYTES_MAX, NULL, &error) ==
         KVARVE_INVALID_ARGUMENT);
  EXPECT(kvarve_describe(&descriptor, bytes, KVARVE_DESCRIPTOR_BYTES_MAX, size, &error) ==
         KVARVE_OK);
}

static void UseBlocks(kvarve_client* client, kvarve_namespace ns) {
  unsigned char keys[kBlocks * kKeyBytes];
  unsigned char* memory = malloc(2 * kBlocks * kBlockBytes);
  const void* sources[kBlocks];
  void* destinations[kBlocks];
  uint8_t outcomes[kBlocks];
  size_t found = 0, copied = 0;
  kvarve_view* view = NULL;
  int i;
  memset(keys, 0, sizeof(keys));
  for (i = 0; i < kBlocks; ++i) {
    keys[i * kKeyBytes] = (unsigned char)(i + 1);
    memset(memory + i * kBlockBytes, 'a' + i, kBlockBytes);
    sources[i] = memory + i * kBlockBytes;
    destinations[i] = memory + (kBlocks + i) * kBlockBytes;
  }
  EXPECT(kvarve_put(client, ns, NULL, 0, keys, kBlocks, sources, 1, outcomes, &error) == KVARVE_OK);
  for (i = 0; i < kBlocks; ++i) EXPECT(outcomes[i] == KVARVE_STORED);
  EXPECT(kvarve_lookup(client, ns, keys, kBlocks, 0, &found, NULL, &error) == KVARVE_OK);
  EXPECT(found == kBlocks);
  EXPECT(kvarve_get(client, ns, keys, kBlocks, destinations, 1, &copied, &error) == KVARVE_OK);
  EXPECT(copied == kBlocks);
  EXPECT(memcmp(memory, memory + kBlocks * kBlockBytes, kBlocks * kBlockBytes) == 0);
  EXPECT(kvarve_acquire(client, ns, keys, kBlocks, 1, &view, &error) == KVARVE_OK);
  EXPECT(kvarve_view_size(view) == kBlocks && kvarve_view_over_lease_cap(view) == 0);
  EXPECT(memcmp(kvarve_view_block(view, 2), sources[2], kBlockBytes) == 0);
  kvarve_view_close(view);
  free(memory);
}

int main(int argc, char** argv) {
  unsigned char descriptor[KVARVE_DESCRIPTOR_BYTES_MAX];
  size_t size = 0;
  kvarve_options options;
  kvarve_client* client = NULL;
  kvarve_namespace ns = 0;
  memset(&options, 0, sizeof(options));
  options.size = sizeof(options);
  options.endpoint = argc > 1 ? argv[1] : NULL;
  options.timeout_us = options.put_timeout_us = kWaitMicros;
  Describe(descriptor, &size);
  EXPECT(kvarve_open(&options, NULL, &error) == KVARVE_INVALID_ARGUMENT);
  EXPECT(kvarve_open(&options, &client, &error) == KVARVE_OK);
  EXPECT(kvarve_open_namespace(client, descriptor, size, &ns, &error) == KVARVE_OK);
  EXPECT(kvarve_wait_ready(client, kWaitMicros, &error) == KVARVE_OK);
  EXPECT(kvarve_block_bytes(client, ns) == kBlockBytes);
  UseBlocks(client, ns);
  kvarve_close(client);
  return 0;
}
