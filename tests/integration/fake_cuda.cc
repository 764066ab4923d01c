// libcuda.so.1 for tests: the fake driver behind the real one's own door, so that whole programs
// and the Python package open it as they open a driver. Whoever loads it first, or finds it by
// LD_LIBRARY_PATH, has a GPU.
//
// THREADS: any for the driver; one for what is below it.  BLOCKS: kvarve_fake_close.
#include <cstring>
#include <string>
#include <utility>

#include "gpu/emulator/fake_driver.h"

namespace {

using kvarve::fake::FakeDriver;

FakeDriver* g_driver = nullptr;

void Open(const FakeDriver::Options& options) {
  delete g_driver;
  g_driver = new FakeDriver(options);
}

}  // namespace

extern "C" {

// As the driver's: an entry by its name and the version whose ABI the caller was written for.
int cuGetProcAddress_v2(const char* symbol, void** function, int version, unsigned long long,
                        int*) {
  if (g_driver == nullptr) Open({});
  const kvarve::cuda::Driver& table = g_driver->table();
  *function = nullptr;
#define KV_FAKE_ENTRY(name, its_symbol, its_version, parameters)        \
  if (std::strcmp(symbol, its_symbol) == 0 && version == its_version) { \
    std::memcpy(function, &table.name, sizeof *function);               \
  }
  KV_DRIVER_ENTRIES(KV_FAKE_ENTRY)
#undef KV_FAKE_ENTRY
  return *function == nullptr ? kvarve::cuda::kNotFound : kvarve::cuda::kSuccess;
}

// Another GPU from now on; nobody uses the one before.
void kvarve_fake_open(int read_only_registration, unsigned long long max_registration) {
  FakeDriver::Options options;
  options.read_only_registration = read_only_registration != 0;
  options.max_registration = max_registration;
  Open(options);
}

// An engine's pages, which its framework would have allocated on the GPU.
void kvarve_fake_adopt(const void* at, size_t bytes) { g_driver->Adopt(at, bytes); }

unsigned long long kvarve_fake_calls(const char* name) { return g_driver->calls(name); }

// An engine's stream that captures a graph, and its end: whether the graph is valid.
void kvarve_fake_begin_capture() { g_driver->BeginCapture(g_driver->NewEngineStream()); }
int kvarve_fake_end_capture() { return g_driver->EndCapture() ? 1 : 0; }

// What the driver had to say, and what it was not given back; nothing is well. Adopted memory is
// nobody's to give back.
const char* kvarve_fake_close() {
  static std::string text;
  text.clear();
  for (const std::string& line : g_driver->diagnostics()) text += line + "\n";
  text += g_driver->leaks();
  delete std::exchange(g_driver, nullptr);
  return text.c_str();
}

}  // extern "C"
