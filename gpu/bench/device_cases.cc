#include "gpu/bench/device_cases.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>

#include "absl/strings/str_format.h"
#include "gpu/bench/gpu_steps.h"
#include "gpu/kernels/kernel_table.h"
#include "storage/base/status_macros.h"

namespace kvarve::gpu_bench {
namespace {

constexpr size_t kMaxFileBytes = 64 << 20;
constexpr uint64_t kMaxImageBytes = 64 << 20;

using Data = nlohmann::json;

Data Binary(const std::vector<uint8_t>& bytes) { return Data::binary(bytes); }

Data ToData(const DeviceCase& which) {
  Data launches = Data::array(), numbers = Data::array(), changed = Data::array();
  for (const CaseLaunch& l : which.launches)
    launches.push_back({l.kernel, l.grid, Binary(l.params), l.addresses});
  for (const CaseNumbers& n : which.numbers)
    numbers.push_back({n.offset, n.type, n.want, n.absolute, n.relative, n.is_larger});
  for (const CaseBytes& c : which.changed) changed.push_back({c.offset, Binary(c.bytes)});
  return {{"name", which.name},           {"launches", launches}, {"image", Binary(which.image)},
          {"addresses", which.addresses}, {"numbers", numbers},   {"changed", changed},
          {"ignored", which.ignored}};
}

std::vector<uint8_t> Bytes(const Data& data) { return data.get_binary(); }

DeviceCase FromData(const Data& data) {  // throws
  DeviceCase which;
  which.name = data.at("name").get<std::string>();
  which.image = Bytes(data.at("image"));
  which.addresses = data.at("addresses").get<std::vector<uint32_t>>();
  which.ignored = data.at("ignored").get<std::vector<std::pair<uint64_t, uint64_t>>>();
  for (const Data& l : data.at("launches")) {
    which.launches.push_back({l.at(0).get<std::string>(), l.at(1).get<uint32_t>(), Bytes(l.at(2)),
                              l.at(3).get<std::vector<uint32_t>>()});
  }
  for (const Data& n : data.at("numbers")) {
    which.numbers.push_back({n.at(0).get<uint64_t>(),
                             n.at(1).get<uint32_t>(),
                             {},
                             n.at(3).get<double>(),
                             n.at(4).get<double>(),
                             n.at(5).get<bool>()});
    // CBOR has infinities; JSON's reader of numbers takes them.
    which.numbers.back().want = n.at(2).get<std::vector<float>>();
  }
  for (const Data& c : data.at("changed"))
    which.changed.push_back({c.at(0).get<uint64_t>(), Bytes(c.at(1))});
  return which;
}

uint64_t BytesOf(uint32_t type) { return type == kF32 ? 4 : 2; }

// All offsets lie inside what they are offsets of.
bool IsSound(const DeviceCase& which) {
  const uint64_t bytes = which.image.size();
  const auto inside = [](uint64_t offset, uint64_t size, uint64_t end) {
    return offset <= end && size <= end - offset;
  };
  bool sound = bytes <= kMaxImageBytes && !which.launches.empty();
  for (const uint32_t at : which.addresses) sound = sound && inside(at, 8, bytes);
  for (const CaseBytes& c : which.changed) sound = sound && inside(c.offset, c.bytes.size(), bytes);
  for (const CaseNumbers& n : which.numbers)
    sound = sound && inside(n.offset, n.want.size() * BytesOf(n.type), bytes);
  for (const auto& [begin, end] : which.ignored) sound = sound && begin <= end && end <= bytes;
  for (const CaseLaunch& l : which.launches) {
    sound = sound && l.params.size() <= sizeof(Launch::params);
    for (const uint32_t at : l.addresses) sound = sound && inside(at, 8, l.params.size());
  }
  return sound;
}

// Words that count from the image's begin count from `base`.
void Rebase(std::byte* bytes, const std::vector<uint32_t>& addresses, uint64_t base) {
  for (const uint32_t at : addresses) {
    uint64_t word = 0;
    std::memcpy(&word, bytes + at, sizeof word);
    word += base;
    std::memcpy(bytes + at, &word, sizeof word);
  }
}

absl::StatusOr<Launch> LaunchOf(const CaseLaunch& recorded, uint64_t base) {
  for (uint32_t row = 0; row < kKernelCount; ++row) {
    if (recorded.kernel != kKernels[row].name) continue;
    Launch launch;
    launch.kernel = row;
    launch.grid = recorded.grid;
    std::memcpy(launch.params.data(), recorded.params.data(), recorded.params.size());
    Rebase(launch.params.data(), recorded.addresses, base);
    return launch;
  }
  return absl::NotFoundError("no kernel " + recorded.kernel);
}

float Number(const std::byte* at, uint32_t type) {
  uint32_t bits = 0;
  std::memcpy(&bits, at, BytesOf(type));
  float value = 0;
  if (type == kF16) {  // sign, 5 bits of exponent, 10 of fraction
    const int exponent = static_cast<int>(bits >> 10 & 31);
    const auto fraction = static_cast<float>(bits & 1023);
    value = exponent == 31  ? (fraction == 0 ? HUGE_VALF : std::nanf(""))
            : exponent == 0 ? std::ldexp(fraction, -24)
                            : std::ldexp(1024 + fraction, exponent - 25);
    return (bits & 0x8000) != 0 ? -value : value;
  }
  if (type == kBf16) bits <<= 16;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

void CheckNumbers(const CaseNumbers& numbers, const std::byte* image, CaseAnswer* answer) {
  for (size_t i = 0; i < numbers.want.size(); ++i) {
    const double want = numbers.want[i];
    const double got = Number(image + numbers.offset + i * BytesOf(numbers.type), numbers.type);
    if (got == want) continue;
    const double part = numbers.relative * std::fabs(want);
    const double allowed =
        numbers.is_larger ? std::max(numbers.absolute, part) : numbers.absolute + part;
    const double error = std::fabs(got - want) / allowed;
    if (std::isfinite(error)) answer->worst = std::max(answer->worst, error);
    if (error <= 1 || !answer->wrong.empty()) continue;  // a NaN is no such
    answer->wrong = absl::StrFormat("number %d is %g, not %g", i, got, want);
  }
}

}  // namespace

absl::Status SaveCases(const std::vector<DeviceCase>& cases, const std::string& path) {
  Data all = Data::array();
  for (const DeviceCase& which : cases) all.push_back(ToData(which));
  const std::vector<uint8_t> bytes = Data::to_cbor(all);
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
  file.flush();
  return file.good() ? absl::OkStatus() : absl::InternalError("cannot write " + path);
}

absl::StatusOr<std::vector<DeviceCase>> LoadCases(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::NotFoundError("no file of cases: " + path);
  std::vector<uint8_t> bytes(std::istreambuf_iterator<char>(file), {});
  if (bytes.size() > kMaxFileBytes) return absl::InvalidArgumentError("too large: " + path);
  const Data all = Data::from_cbor(bytes, true, false);
  if (!all.is_array() || all.empty()) return absl::InvalidArgumentError("no cases in " + path);
  std::vector<DeviceCase> cases;
  try {
    for (const Data& data : all) cases.push_back(FromData(data));
  } catch (const Data::exception& e) {
    return absl::InvalidArgumentError(absl::StrFormat("%s: %s", path, e.what()));
  }
  for (const DeviceCase& which : cases) {
    if (!IsSound(which))
      return absl::InvalidArgumentError(absl::StrFormat("%s: %s", path, which.name));
  }
  return cases;
}

absl::StatusOr<CaseAnswer> Replay(const DeviceCase& which, DeviceStream& stream, HostBuffer& host,
                                  const DeviceMemory& memory) {
  const uint64_t bytes = which.image.size(), base = memory.address();
  if (host.bytes().size() < bytes || memory.bytes() < bytes)
    return absl::InvalidArgumentError("no room for " + which.name);
  std::byte* const image = host.bytes().data();
  std::memcpy(image, which.image.data(), bytes);
  Rebase(image, which.addresses, base);
  const CopyJob there{host.address(), base, bytes}, back{base, host.address(), bytes};
  KV_RETURN_IF_ERROR(stream.Copy({&there, 1}, CopyOrder::kStream));
  for (const CaseLaunch& recorded : which.launches) {
    KV_ASSIGN_OR_RETURN(const Launch launch, LaunchOf(recorded, base));
    KV_RETURN_IF_ERROR(stream.Run(launch));
  }
  KV_RETURN_IF_ERROR(stream.Copy({&back, 1}, CopyOrder::kStream));
  KV_RETURN_IF_ERROR(Finish(stream));
  Rebase(image, which.addresses, 0 - base);
  CaseAnswer answer;
  for (const CaseNumbers& numbers : which.numbers) CheckNumbers(numbers, image, &answer);
  // All else as recorded, also what no kernel may touch.
  std::vector<uint8_t> want = which.image;
  for (const CaseBytes& c : which.changed)
    std::copy(c.bytes.begin(), c.bytes.end(), want.begin() + static_cast<ptrdiff_t>(c.offset));
  std::vector<bool> skip(bytes);
  for (const auto& [begin, end] : which.ignored)
    std::fill(skip.begin() + begin, skip.begin() + end, true);
  for (const CaseNumbers& n : which.numbers) {
    std::fill_n(skip.begin() + static_cast<ptrdiff_t>(n.offset), n.want.size() * BytesOf(n.type),
                true);
  }
  for (uint64_t i = 0; i < bytes && answer.wrong.empty(); ++i) {
    if (!skip[i] && image[i] != std::byte{want[i]})
      answer.wrong =
          absl::StrFormat("byte %d is %d, not %d", i, static_cast<int>(image[i]), want[i]);
  }
  return answer;
}

}  // namespace kvarve::gpu_bench
