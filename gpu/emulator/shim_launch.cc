#include "gpu/emulator/shim_launch.h"

namespace kvarve::shim {

std::string RunOnShim(const Launch& launch, Order order, uint64_t seed) {
  const KernelInfo& info = kKernels[launch.kernel];
  const KernelEntry* const entry = FindKernel(info.name);
  if (entry == nullptr) return std::string("no kernel ") + info.name;
  Grid grid;
  grid.grid.x = launch.grid;
  grid.block.x = kKernelThreads;
  grid.order = order;
  grid.seed = seed;
  return RunGrid(grid, [&] { entry->run(launch.params.data()); });
}

}  // namespace kvarve::shim
