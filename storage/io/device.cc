#include "storage/io/device.h"

#include <errno.h>
#include <string.h>

#include <system_error>

#include "absl/strings/str_format.h"
#include "storage/base/abseil.h"
#include "storage/io/io_wait.h"

namespace kvarve {
namespace {

absl::Status BadRequest(const DeviceInfo& device, const IoRequest& request, std::string_view why) {
  return absl::InvalidArgumentError(absl::StrFormat(
      "%s: %s of %d bytes at %d: %s", device.path, std::string(IoOpName(request.op)),
      request.bytes(), request.offset, std::string(why)));
}

absl::Status Now(Device* device, IoRequest request) {
  IoWait wait(device);
  wait.Submit(std::move(request));
  return wait.Wait();
}

}  // namespace

std::string_view IoOpName(IoOp op) {
  constexpr std::string_view kNames[kIoOps] = {"read", "write", "sync"};
  return kNames[static_cast<int>(op)];
}

std::string_view IoClassName(IoClass io_class) {
  constexpr std::string_view kNames[kIoClasses] = {"demand", "prefetch", "flush", "gc", "scrub"};
  return kNames[static_cast<int>(io_class)];
}

std::string_view IoBackendName(IoBackend backend) {
  constexpr std::string_view kNames[] = {"io_uring", "posix", "simulated"};
  return kNames[static_cast<int>(backend)];
}

absl::Status Device::RegisterMemory(void* base, size_t bytes) {
  return absl::UnimplementedError("this device registers no memory");
}

absl::Status CheckRequest(const DeviceInfo& device, const IoRequest& request) {
  if (request.op == IoOp::kSync) {
    return request.buffers.empty() ? absl::OkStatus()
                                   : BadRequest(device, request, "a sync has no buffers");
  }
  if (request.buffers.empty() || request.buffers.size() > kMaxIoBuffers)
    return BadRequest(device, request, absl::StrFormat("1 to %d buffers", kMaxIoBuffers));
  for (const iovec& buffer : request.buffers) {
    if (reinterpret_cast<uintptr_t>(buffer.iov_base) % kIoUnit != 0 || buffer.iov_len == 0 ||
        buffer.iov_len % kIoUnit != 0) {
      return BadRequest(device, request, "buffers are whole aligned pages of 4096 bytes");
    }
  }
  const uint64_t bytes = request.bytes();
  if (bytes > kMaxIoBytes)
    return BadRequest(device, request, absl::StrFormat("at most %d bytes", kMaxIoBytes));
  if (request.offset % kIoUnit != 0)
    return BadRequest(device, request, "offsets are multiples of 4096");
  if (request.offset > device.bytes || bytes > device.bytes - request.offset)
    return BadRequest(device, request, absl::StrFormat("the device ends at %d", device.bytes));
  return absl::OkStatus();
}

IoResult ResultOf(const DeviceInfo& device, IoOp op, uint64_t offset, uint64_t wanted,
                  int64_t result) {
  IoResult out;
  if (result < 0) {
    out.error = static_cast<int>(-result);
    const std::string text =
        absl::StrFormat("%s: %s of %d bytes at %d: %s", device.path, std::string(IoOpName(op)),
                        wanted, offset, std::generic_category().message(out.error));
    out.status = out.error == ENOSPC || out.error == EDQUOT ? absl::ResourceExhaustedError(text)
                                                            : absl::InternalError(text);
    return out;
  }
  out.bytes = static_cast<uint64_t>(result);
  if (op != IoOp::kSync && out.bytes < wanted) {
    out.status =
        absl::DataLossError(absl::StrFormat("%s: short %s: %d of %d bytes at %d", device.path,
                                            std::string(IoOpName(op)), out.bytes, wanted, offset));
  }
  return out;
}

absl::Status ReadNow(Device* device, IoClass io_class, uint64_t offset, std::span<std::byte> into) {
  return Now(device, {IoOp::kRead, io_class, offset, {{into.data(), into.size()}}, nullptr});
}

absl::Status WriteNow(Device* device, IoClass io_class, uint64_t offset,
                      std::span<const std::byte> from) {
  return Now(device, {IoOp::kWrite,
                      io_class,
                      offset,
                      {{const_cast<std::byte*>(from.data()), from.size()}},
                      nullptr});
}

absl::Status SyncNow(Device* device, IoClass io_class) {
  return Now(device, {IoOp::kSync, io_class, 0, {}, nullptr});
}

}  // namespace kvarve
