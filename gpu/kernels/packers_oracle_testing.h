// What the packing kernels must answer, written again without their code: numbers by search over
// all codes, in double where it is exact.
//
// THREADS: any.
#ifndef KVARVE_GPU_KERNELS_PACKERS_ORACLE_TESTING_H_
#define KVARVE_GPU_KERNELS_PACKERS_ORACLE_TESTING_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "gpu/kernels/params.h"
#include "gpu/paged/kv_view.h"

namespace kvarve::testing {

float LoadNumber(const std::byte* at, NumberType type);
void StoreNumber(std::byte* at, NumberType type, float value);
// The nearest of all codes, ties to the even one; beyond the largest finite one, that one.
uint8_t NearestFp8(float value);
float Fp8Value(uint8_t code);

struct PackedRow {
  std::byte* page;
  std::byte* packed;
  bool is_v;
};

struct PackOracle {
  NumberType type;
  uint32_t group;
  const KvView& view;

  float GatherFp8(const std::vector<PackedRow>& rows) const;  // answers the scale
  void ScatterFp8(const std::vector<PackedRow>& rows, float scale) const;
  void GatherInt4(const std::vector<PackedRow>& rows) const;
  void ScatterInt4(const std::vector<PackedRow>& rows) const;

 private:
  uint32_t Dim(const PackedRow& row) const { return row.is_v ? view.v_dim : view.k_dim; }
};

}  // namespace kvarve::testing

#endif  // KVARVE_GPU_KERNELS_PACKERS_ORACLE_TESTING_H_
