#include "storage/policy/eviction_policy.h"

#include "storage/policy/hazard_policy.h"

namespace kvarve {

std::unique_ptr<EvictionPolicy> NewEvictionPolicy(std::string_view name) {
  if (name == "lru") return NewLruPolicy();
  if (name == "s3fifo") return NewS3FifoPolicy();
  if (name == "hazard") return NewHazardPolicy();
  return nullptr;
}

}  // namespace kvarve
