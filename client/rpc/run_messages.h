// What the messages of several calls begin with. THREADS: any.
#ifndef KVARVE_CLIENT_RPC_RUN_MESSAGES_H_
#define KVARVE_CLIENT_RPC_RUN_MESSAGES_H_

#include <grpcpp/support/byte_buffer.h>

#include <span>
#include <string>

#include "client/cpp/namespace_info.h"
#include "storage/block/block_key.h"

namespace kvarve::client {

// A request's namespace and keys.
template <typename Request>
void SetRun(const OpenNamespaceInfo& info, std::span<const BlockKey> keys, Request* request) {
  request->set_ns_id(info.id.bytes.data(), info.id.bytes.size());
  request->mutable_keys()->set_key_bytes(info.key_bytes);
  std::string* const packed = request->mutable_keys()->mutable_packed();
  packed->reserve(keys.size() * info.key_bytes);
  for (const BlockKey& key : keys) {
    packed->append(reinterpret_cast<const char*>(key.bytes.data()), info.key_bytes);
  }
}

inline grpc::ByteBuffer BufferOf(const std::string& bytes) {
  const grpc::Slice slice(bytes);
  return grpc::ByteBuffer(&slice, 1);
}

}  // namespace kvarve::client

#endif  // KVARVE_CLIENT_RPC_RUN_MESSAGES_H_
