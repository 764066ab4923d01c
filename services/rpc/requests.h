// What every call's handler does with a request's words. THREADS: any.
#ifndef KVARVE_SERVICES_RPC_REQUESTS_H_
#define KVARVE_SERVICES_RPC_REQUESTS_H_

#include <grpcpp/support/byte_buffer.h>

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/kvarve/v1/block.pb.h"
#include "services/rpc/block_store.h"
#include "services/rpc/caller.h"
#include "storage/block/block_key.h"

namespace kvarve {

// InvalidArgument: not 16 bytes. NotFound: nobody opened it here, or it is another tenant's, which
// is told apart by nothing.
absl::StatusOr<NamespaceInfo> NamespaceOf(BlockStore& store, const Caller& caller,
                                          const std::string& ns_id);
// InvalidArgument: keys of another length than the namespace's, or more than `most`.
absl::StatusOr<std::vector<BlockKey>> KeysOf(const v1::Keys& keys, const NamespaceInfo& ns,
                                             size_t most);
absl::StatusOr<BlockKey> KeyOf(const std::string& bytes, const NamespaceInfo& ns);

// A protobuf message out of a raw call's buffer, and into one. InvalidArgument: it does not parse.
absl::Status ParseMessage(const grpc::ByteBuffer& buffer, google::protobuf::Message* message);
grpc::ByteBuffer SerializeMessage(const google::protobuf::Message& message);

}  // namespace kvarve

#endif  // KVARVE_SERVICES_RPC_REQUESTS_H_
