// The namespace of tests whose blocks are just bytes. THREADS: any.
#ifndef KVARVE_STORAGE_TESTING_OPAQUE_NAMESPACE_H_
#define KVARVE_STORAGE_TESTING_OPAQUE_NAMESPACE_H_

#include <cstdint>
#include <string>

#include "storage/block/namespace.h"

namespace kvarve {

// One layer, one head, blocks of `block_bytes`; no tenant.
NamespaceDescriptor OpaqueNamespace(std::string model, uint64_t block_bytes,
                                    uint32_t key_bytes = 32);

}  // namespace kvarve

#endif  // KVARVE_STORAGE_TESTING_OPAQUE_NAMESPACE_H_
