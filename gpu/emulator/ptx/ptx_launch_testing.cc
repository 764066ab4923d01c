#include "gpu/emulator/ptx/ptx_launch_testing.h"

#include <cstdio>
#include <fstream>
#include <map>
#include <span>
#include <sstream>
#include <vector>

#include "gpu/emulator/ptx/ptx_run.h"

namespace kvarve::ptx {

absl::StatusOr<Module> LoadModule(const std::string& name) {
  std::ifstream file(std::string(KV_PTX_FOLDER) + "/" + name + ".ptx");
  if (!file) return absl::NotFoundError("no PTX of " + name);
  std::stringstream text;
  text << file.rdbuf();
  return ParseModule(text.str());
}

const Module& ModuleFor(const std::string& target) {
  static auto& modules = *new std::map<std::string, Module>;
  const auto found = modules.find(target);
  if (found != modules.end()) return found->second;
  absl::StatusOr<Module> module = LoadModule("kernels_" + target);
  if (!module.ok())
    std::fprintf(stderr, "%s: %s\n", target.c_str(), module.status().ToString().c_str());
  return modules.emplace(target, module.ok() ? *std::move(module) : Module{}).first->second;
}

std::string RunOnPtx(const Module& module, const Launch& launch, const testing::Memory& memory,
                     bool reverse) {
  const KernelInfo& info = kKernels[launch.kernel];
  std::vector<Allocation> allocations;
  for (const auto& bytes : memory)
    allocations.push_back({reinterpret_cast<uint64_t>(bytes.data()), bytes.size()});
  Grid grid;
  grid.blocks = launch.grid, grid.threads = kKernelThreads, grid.reverse = reverse;
  return Runner(module, allocations)
      .Run(info.name, std::span(launch.params).first(info.params_bytes), grid);
}

}  // namespace kvarve::ptx
