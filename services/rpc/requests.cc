#include "services/rpc/requests.h"

#include <google/protobuf/message.h>
#include <grpcpp/support/proto_buffer_reader.h>

#include <cstring>

#include "absl/strings/str_format.h"
#include "storage/base/status_macros.h"

namespace kvarve {

absl::StatusOr<NamespaceInfo> NamespaceOf(BlockStore& store, const Caller& caller,
                                          const std::string& ns_id) {
  NamespaceId id;
  if (ns_id.size() != id.bytes.size()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("ns_id has %d bytes; it must have 16", ns_id.size()));
  }
  std::memcpy(id.bytes.data(), ns_id.data(), id.bytes.size());
  absl::StatusOr<NamespaceInfo> ns = store.FindNamespace(id);
  if (ns.ok() && ns->tenant != caller.tenant) {
    return absl::NotFoundError("no client has opened this namespace here");
  }
  return ns;
}

absl::StatusOr<std::vector<BlockKey>> KeysOf(const v1::Keys& keys, const NamespaceInfo& ns,
                                             size_t most) {
  if (keys.key_bytes() != ns.key_bytes) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "keys have %d bytes; this namespace's have %d", keys.key_bytes(), ns.key_bytes));
  }
  const std::string& packed = keys.packed();
  if (packed.size() % ns.key_bytes != 0) {
    return absl::InvalidArgumentError("packed keys end in the middle of one");
  }
  const size_t count = packed.size() / ns.key_bytes;
  if (count > most) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%d keys in one call; at most %d", count, most));
  }
  std::vector<BlockKey> result(count);
  for (size_t i = 0; i < count; ++i) {
    std::memcpy(result[i].bytes.data(), packed.data() + i * ns.key_bytes, ns.key_bytes);
  }
  return result;
}

absl::StatusOr<BlockKey> KeyOf(const std::string& bytes, const NamespaceInfo& ns) {
  BlockKey key;
  if (bytes.size() != ns.key_bytes) {
    return absl::InvalidArgumentError(
        absl::StrFormat("a key of %d bytes; this namespace's have %d", bytes.size(), ns.key_bytes));
  }
  std::memcpy(key.bytes.data(), bytes.data(), bytes.size());
  return key;
}

absl::Status ParseMessage(const grpc::ByteBuffer& buffer, google::protobuf::Message* message) {
  grpc::ByteBuffer copy(buffer);  // shares the bytes
  grpc::ProtoBufferReader reader(&copy);
  if (!reader.status().ok() || !message->ParseFromZeroCopyStream(&reader)) {
    return absl::InvalidArgumentError("the request is not a message of this call");
  }
  return absl::OkStatus();
}

grpc::ByteBuffer SerializeMessage(const google::protobuf::Message& message) {
  const grpc::Slice slice(message.SerializeAsString());
  return grpc::ByteBuffer(&slice, 1);
}

}  // namespace kvarve
