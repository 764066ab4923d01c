// The C ABI over Client. No exception leaves it: of ours there are none, and the standard library's
// (no memory) end here as ResourceExhausted.
#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <new>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/cpp/client.h"
#include "client/cpp/fork_guard.h"
#include "client/cpp/kvarve.h"
#include "storage/base/abseil.h"
#include "storage/base/status_macros.h"
#include "storage/block/namespace.h"

struct kvarve_client {
  std::unique_ptr<kvarve::Client> client;
};

struct kvarve_view {
  kvarve::View view;
  kvarve::client::ForkStamp stamp;
};

namespace kvarve {
namespace {

template <size_t kBytes>
void CopyText(std::string_view text, char (&to)[kBytes]) {
  const size_t size = std::min(text.size(), kBytes - 1);
  if (size > 0) std::memcpy(to, text.data(), size);
  to[size] = '\0';
}

kvarve_code Answer(const absl::Status& status, kvarve_error* error) {
  if (error != nullptr) CopyText(ToStd(status.message()), error->text);
  return static_cast<kvarve_code>(status.code());
}

struct Needed {
  const char* name;
  const void* pointer;
};

// Runs `body`, whose Status is the answer, unless something needed is null.
template <typename Body>
kvarve_code Guarded(kvarve_error* error, std::initializer_list<Needed> needed, const Body& body) {
  try {
    for (const Needed& one : needed) {
      if (one.pointer != nullptr) continue;
      return Answer(absl::InvalidArgumentError(absl::StrCat(one.name, " is null")), error);
    }
    return Answer(body(), error);
  } catch (const std::bad_alloc&) {
    if (error != nullptr) CopyText("out of memory", error->text);
    return KVARVE_RESOURCE_EXHAUSTED;
  } catch (...) {
    if (error != nullptr) CopyText("an exception of the standard library", error->text);
    return KVARVE_INTERNAL;
  }
}

std::string_view Text(const char* text) { return text == nullptr ? std::string_view() : text; }

constexpr uint64_t kMaxMicros = 1'000'000'000'000;  // eleven days: as nanoseconds no overflow

int64_t Nanos(uint64_t micros) { return static_cast<int64_t>(std::min(micros, kMaxMicros)) * 1000; }

absl::StatusOr<std::vector<BlockKey>> Unpack(const Client& client, ClientNamespace ns,
                                             const void* keys, size_t count) {
  const uint32_t key_bytes = client.key_bytes(ns);
  if (key_bytes == 0) return absl::InvalidArgumentError("no such namespace");
  if (keys == nullptr && count > 0) return absl::InvalidArgumentError("keys are null");
  std::vector<BlockKey> unpacked(count);
  for (size_t i = 0; i < count; ++i) {
    std::memcpy(unpacked[i].bytes.data(), static_cast<const uint8_t*>(keys) + i * key_bytes,
                key_bytes);
  }
  return unpacked;
}

// The structure as this library knows it: what an earlier one lacks is zero, and what a later one
// has beyond must be.
template <typename T>
absl::StatusOr<T> AsKnown(const T& given, const char* type) {
  if (given.size < sizeof(given.size)) {
    return absl::InvalidArgumentError(absl::StrCat(type, ": size is to be sizeof(", type, ")"));
  }
  const auto* const bytes = reinterpret_cast<const unsigned char*>(&given);
  const size_t known = std::min(given.size, sizeof(T));
  if (std::any_of(bytes + known, bytes + given.size,
                  [](unsigned char byte) { return byte != 0; })) {
    return absl::InvalidArgumentError(
        absl::StrCat(type, ": this libkvarve is older than the kvarve.h of the program, and ",
                     "does not know all that is set"));
  }
  T whole{};
  std::memcpy(&whole, bytes, known);
  return whole;
}

absl::StatusOr<ClientOptions> Convert(const kvarve_options& options_given) {
  KV_ASSIGN_OR_RETURN(const kvarve_options given, AsKnown(options_given, "kvarve_options"));
  ClientOptions options;
  if (given.endpoint != nullptr) options.endpoint = given.endpoint;
  if (given.client_name != nullptr) options.client_name = given.client_name;
  options.engine_id = std::string(Text(given.engine_id));
  if (given.role > static_cast<uint32_t>(local::Role::kWorker)) {
    return absl::InvalidArgumentError("role must be 0, 1 or 2");
  }
  options.role = static_cast<local::Role>(given.role);
  options.dp_rank = given.dp_rank;
  options.pp_rank = given.pp_rank;
  options.tp_rank = given.tp_rank;
  if (given.staging_bytes > 0) options.staging_bytes = given.staging_bytes;
  if (given.no_staging != 0) options.staging_bytes = 0;
  if (given.timeout_us > 0) options.timeout_nanos = Nanos(given.timeout_us);
  if (given.put_timeout_us > 0) options.put_timeout_nanos = Nanos(given.put_timeout_us);
  return options;
}

uint32_t OrElse(uint32_t value, uint32_t otherwise) { return value != 0 ? value : otherwise; }

absl::StatusOr<NamespaceDescriptor> Convert(const kvarve_descriptor& descriptor_given) {
  KV_ASSIGN_OR_RETURN(const kvarve_descriptor given,
                      AsKnown(descriptor_given, "kvarve_descriptor"));
  NamespaceDescriptor d;
  d.model = Text(given.model);
  d.model_digest = Text(given.model_digest);
  d.tokenizer_digest = Text(given.tokenizer_digest);
  d.element_type = static_cast<ElementType>(given.element_type);
  d.layer_begin = given.layer_begin;
  d.layer_total = OrElse(given.layer_total, 1);
  d.layer_count = OrElse(given.layer_count, d.layer_total);
  d.kv_head_begin = given.kv_head_begin;
  d.kv_head_total = OrElse(given.kv_head_total, 1);
  d.kv_head_count = OrElse(given.kv_head_count, d.kv_head_total);
  d.k_dim = given.k_dim;
  d.v_dim = given.v_dim;
  d.block_tokens = OrElse(given.block_tokens, 1);
  d.block_bytes = given.block_bytes;
  d.key_bytes = OrElse(given.key_bytes, BlockKey::kMaxBytes);
  d.hash_version = given.hash_version != nullptr ? given.hash_version : "kvarve-chain-1";
  d.adapter_digest = Text(given.adapter_digest);
  d.attention_backend = Text(given.attention_backend);
  d.kv_scales = Text(given.kv_scales);
  d.generation = given.generation;
  d.client_salt = Text(given.client_salt);
  for (size_t i = 0; i < given.extra_count; ++i) {
    const char* const name = given.extra == nullptr ? nullptr : given.extra[2 * i];
    if (name == nullptr) return absl::InvalidArgumentError("extra: a name is null");
    if (!d.extra.emplace(name, Text(given.extra[2 * i + 1])).second) {
      return absl::InvalidArgumentError(absl::StrCat("extra: ", name, " twice"));
    }
  }
  KV_RETURN_IF_ERROR(ValidateDescriptor(d));
  return d;
}

}  // namespace
}  // namespace kvarve

using kvarve::Guarded;

kvarve_code kvarve_open(const kvarve_options* options, kvarve_client** client,
                        kvarve_error* error) {
  return Guarded(error, {{"client", client}}, [&] {
    *client = nullptr;
    const kvarve_options defaults = {.size = sizeof(defaults)};
    // By reference: there may be more behind it than this library knows.
    KV_ASSIGN_OR_RETURN(const kvarve::ClientOptions converted,
                        kvarve::Convert(*(options == nullptr ? &defaults : options)));
    KV_ASSIGN_OR_RETURN(std::unique_ptr<kvarve::Client> made, kvarve::Client::Create(converted));
    *client = new kvarve_client{std::move(made)};
    return absl::OkStatus();
  });
}

void kvarve_close(kvarve_client* client) { delete client; }

kvarve_code kvarve_wait_ready(kvarve_client* client, uint64_t timeout_us, kvarve_error* error) {
  return Guarded(error, {{"client", client}},
                 [&] { return client->client->WaitReady(kvarve::Nanos(timeout_us)); });
}

kvarve_code kvarve_get_state(const kvarve_client* client, kvarve_state* state) {
  return Guarded(nullptr, {{"client", client}, {"state", state}}, [&] {
    if (state->size < sizeof(state->size)) {
      return absl::InvalidArgumentError("kvarve_state: size is to be sizeof(kvarve_state)");
    }
    const kvarve::ClientState now = client->client->State();
    kvarve_state whole{};
    whole.size = state->size;
    whole.connected = now.connected ? 1 : 0;
    whole.breaker_open = now.breaker_open ? 1 : 0;
    whole.incarnation = now.incarnation;
    whole.timeouts = now.timeouts;
    whole.reconnects = now.reconnects;
    whole.checksum_mismatches = now.checksum_mismatches;
    kvarve::CopyText(now.daemon_version, whole.daemon_version);
    kvarve::CopyText(now.last_error, whole.last_error);
    std::memcpy(state, &whole, std::min(state->size, sizeof(whole)));
    return absl::OkStatus();
  });
}

kvarve_code kvarve_describe(const kvarve_descriptor* descriptor, void* bytes, size_t capacity,
                            size_t* size, kvarve_error* error) {
  return Guarded(error, {{"descriptor", descriptor}, {"bytes", bytes}, {"size", size}}, [&] {
    KV_ASSIGN_OR_RETURN(const kvarve::NamespaceDescriptor converted, kvarve::Convert(*descriptor));
    const std::string encoded = kvarve::EncodeDescriptor(converted);
    *size = encoded.size();
    if (encoded.size() > capacity) {
      return absl::OutOfRangeError(absl::StrCat("the descriptor has ", encoded.size(), " bytes"));
    }
    std::memcpy(bytes, encoded.data(), encoded.size());
    return absl::OkStatus();
  });
}

kvarve_code kvarve_open_namespace(kvarve_client* client, const void* descriptor,
                                  size_t descriptor_bytes, kvarve_namespace* ns,
                                  kvarve_error* error) {
  return Guarded(error, {{"client", client}, {"descriptor", descriptor}, {"ns", ns}}, [&] {
    KV_ASSIGN_OR_RETURN(
        const kvarve::NamespaceDescriptor decoded,
        kvarve::DecodeDescriptor({static_cast<const char*>(descriptor), descriptor_bytes}));
    KV_ASSIGN_OR_RETURN(*ns, client->client->OpenNamespace(decoded));
    return absl::OkStatus();
  });
}

uint64_t kvarve_block_bytes(const kvarve_client* client, kvarve_namespace ns) {
  return client == nullptr ? 0 : client->client->block_bytes(ns);
}

uint32_t kvarve_key_bytes(const kvarve_client* client, kvarve_namespace ns) {
  return client == nullptr ? 0 : client->client->key_bytes(ns);
}

kvarve_code kvarve_lookup(kvarve_client* client, kvarve_namespace ns, const void* keys,
                          size_t count, uint64_t hold_us, size_t* found, uint64_t* hold,
                          kvarve_error* error) {
  return Guarded(error, {{"client", client}, {"found", found}}, [&] {
    *found = 0;
    if (hold != nullptr) *hold = 0;
    KV_ASSIGN_OR_RETURN(const std::vector<kvarve::BlockKey> unpacked,
                        kvarve::Unpack(*client->client, ns, keys, count));
    KV_ASSIGN_OR_RETURN(const kvarve::LookupResult result,
                        client->client->Lookup(ns, unpacked, kvarve::Nanos(hold_us)));
    *found = result.hit_blocks;
    if (hold != nullptr) *hold = result.hold;
    return absl::OkStatus();
  });
}

kvarve_code kvarve_prefetch(kvarve_client* client, kvarve_namespace ns, const void* keys,
                            size_t count, uint64_t request_id, size_t* found, size_t* started,
                            kvarve_error* error) {
  return Guarded(error, {{"client", client}, {"found", found}}, [&] {
    KV_ASSIGN_OR_RETURN(const std::vector<kvarve::BlockKey> unpacked,
                        kvarve::Unpack(*client->client, ns, keys, count));
    KV_ASSIGN_OR_RETURN(const kvarve::PrefetchResult result,
                        client->client->Prefetch(ns, unpacked, request_id));
    *found = result.hit_blocks;
    if (started != nullptr) *started = result.started_blocks;
    return absl::OkStatus();
  });
}

kvarve_code kvarve_get(kvarve_client* client, kvarve_namespace ns, const void* keys, size_t count,
                       void* const* blocks, uint64_t request_id, size_t* copied,
                       kvarve_error* error) {
  return Guarded(error, {{"client", client}, {"blocks", blocks}, {"copied", copied}}, [&] {
    *copied = 0;
    KV_ASSIGN_OR_RETURN(const std::vector<kvarve::BlockKey> unpacked,
                        kvarve::Unpack(*client->client, ns, keys, count));
    std::vector<std::byte*> destinations(count);
    for (size_t i = 0; i < count; ++i) {
      if (blocks[i] == nullptr) return absl::InvalidArgumentError("a block is null");
      destinations[i] = static_cast<std::byte*>(blocks[i]);
    }
    KV_ASSIGN_OR_RETURN(*copied, client->client->Get(ns, unpacked, destinations, request_id));
    return absl::OkStatus();
  });
}

kvarve_code kvarve_put(kvarve_client* client, kvarve_namespace ns, const void* parent,
                       uint32_t first_depth, const void* keys, size_t count,
                       const void* const* blocks, uint64_t request_id, uint8_t* outcomes,
                       kvarve_error* error) {
  return Guarded(error, {{"client", client}, {"blocks", blocks}, {"outcomes", outcomes}}, [&] {
    KV_ASSIGN_OR_RETURN(const std::vector<kvarve::BlockKey> unpacked,
                        kvarve::Unpack(*client->client, ns, keys, count));
    kvarve::PutChain chain{.first_depth = first_depth, .keys = unpacked, .request_id = request_id};
    if (parent != nullptr) {
      KV_ASSIGN_OR_RETURN(const std::vector<kvarve::BlockKey> one,
                          kvarve::Unpack(*client->client, ns, parent, 1));
      chain.parent = one.front();
    }
    std::vector<const std::byte*> sources(count);
    for (size_t i = 0; i < count; ++i) {
      if (blocks[i] == nullptr) return absl::InvalidArgumentError("a block is null");
      sources[i] = static_cast<const std::byte*>(blocks[i]);
    }
    KV_ASSIGN_OR_RETURN(const std::vector<kvarve::PutOutcome> put,
                        client->client->Put(ns, chain, sources));
    for (size_t i = 0; i < count; ++i) outcomes[i] = static_cast<uint8_t>(put[i]);
    return absl::OkStatus();
  });
}

kvarve_code kvarve_acquire(kvarve_client* client, kvarve_namespace ns, const void* keys,
                           size_t count, uint64_t request_id, kvarve_view** view,
                           kvarve_error* error) {
  return Guarded(error, {{"client", client}, {"view", view}}, [&] {
    *view = nullptr;
    KV_ASSIGN_OR_RETURN(const std::vector<kvarve::BlockKey> unpacked,
                        kvarve::Unpack(*client->client, ns, keys, count));
    KV_ASSIGN_OR_RETURN(kvarve::View acquired, client->client->Acquire(ns, unpacked, request_id));
    *view = new kvarve_view{std::move(acquired), {}};
    return absl::OkStatus();
  });
}

size_t kvarve_view_size(const kvarve_view* view) { return view == nullptr ? 0 : view->view.size(); }

int kvarve_view_over_lease_cap(const kvarve_view* view) {
  return view != nullptr && view->view.grants().over_lease_cap ? 1 : 0;
}

const void* kvarve_view_block(const kvarve_view* view, size_t i) {
  const bool is_there = i < kvarve_view_size(view) && !view->stamp.InChild();
  return is_there ? view->view.block(i) : nullptr;
}

uint64_t kvarve_view_checksum(const kvarve_view* view, size_t i) {
  return i < kvarve_view_size(view) ? view->view.checksum(i) : 0;
}

void kvarve_view_close(kvarve_view* view) { delete view; }

void kvarve_release(kvarve_client* client, uint64_t hold) {
  if (client != nullptr) client->client->Release(hold);
}
