#include "storage/segment/device_format.h"

#include <errno.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <system_error>
#include <utility>

#include "absl/strings/str_format.h"
#include "storage/base/abseil.h"
#include "storage/base/status_macros.h"
#include "storage/base/units.h"
#include "storage/io/aligned_buffer.h"
#include "storage/io/io_wait.h"
#include "storage/io/open_device.h"

namespace kvarve {
namespace {

constexpr uint64_t kZeroBytes = 4 << 20;
constexpr size_t kZeroDepth = 4;

absl::Status WithPath(const Device& device, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrFormat("%s: %s", device.info().path,
                                                     std::string(ToStd(status.message()))));
}

std::span<std::byte, kUnit> PageOf(const AlignedBuffer& buffer) {
  return std::span<std::byte, kUnit>(buffer.data(), kUnit);
}

absl::StatusOr<Superblock> ReadCopy(Device* device, int copy) {
  AlignedBuffer page(kUnit);
  if (kSuperblockOffsets[copy] + kUnit > device->info().bytes)
    return absl::DataLossError("no kvarve superblock");
  KV_RETURN_IF_ERROR(ReadNow(device, IoClass::kDemand, kSuperblockOffsets[copy], page.span()));
  return ParseSuperblock(PageOf(page));
}

absl::Status WriteCopy(Device* device, int copy, const Superblock& superblock) {
  AlignedBuffer page(kUnit);
  EncodeSuperblock(superblock, PageOf(page));
  KV_RETURN_IF_ERROR(WriteNow(device, IoClass::kDemand, kSuperblockOffsets[copy], page.span()));
  return SyncNow(device, IoClass::kDemand);
}

absl::Status WriteZeros(Device* device, uint64_t begin, uint64_t end,
                        const std::function<void(uint64_t)>& progress) {
  const AlignedBuffer zeros(std::min(kZeroBytes, end - begin));
  IoWait wait(device);
  for (uint64_t at = begin; at < end; at += kZeroBytes) {
    wait.WaitBelow(kZeroDepth);
    wait.Submit({IoOp::kWrite,
                 IoClass::kFlush,
                 at,
                 {{zeros.data(), std::min(kZeroBytes, end - at)}},
                 nullptr});
    if (progress) progress(at);
  }
  KV_RETURN_IF_ERROR(wait.Wait());
  return absl::OkStatus();
}

bool IsZero(std::span<const std::byte> bytes) {
  return std::all_of(bytes.begin(), bytes.end(),
                     [](std::byte byte) { return byte == std::byte{0}; });
}

// `head`: the first kFirstSlotOffset bytes, or what there is of them. A superblock that this
// version cannot use is a newer kvarved's, and not ours.
absl::Status CheckMayFormat(const std::string& path, std::span<const std::byte> head) {
  if (IsZero(head)) return absl::OkStatus();
  for (const uint64_t offset : kSuperblockOffsets) {
    if (offset + kUnit <= head.size() &&
        ParseSuperblock(std::span<const std::byte, kUnit>(head.data() + offset, kUnit)).ok())
      return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrFormat(
      "%s holds something that is not of this kvarve: look what it is; --force overwrites it",
      path));
}

absl::Status CheckSizes(const std::string& path, uint64_t bytes, uint64_t segment_bytes) {
  if (segment_bytes < kMinSegmentBytes || segment_bytes > kMaxSegmentBytes ||
      segment_bytes % kUnit != 0) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "segments of %s: at least %s, at most %s, in units of 4 KiB", FormatBytes(segment_bytes),
        FormatBytes(kMinSegmentBytes), FormatBytes(kMaxSegmentBytes)));
  }
  const uint64_t least = kFirstSlotOffset + kMinSlots * segment_bytes;
  if (bytes >= least) return absl::OkStatus();
  // FormatBytes rounds: what it would print must be enough, and a whole number of MiB can be said.
  return absl::InvalidArgumentError(absl::StrFormat(
      "%s: %s is too small for segments of %s: give it %dMiB, or smaller segments", path,
      FormatBytes(bytes), FormatBytes(segment_bytes), (least + kMiB - 1) / kMiB));
}

void FillRandom(const FormatOptions& options, std::span<uint8_t> bytes) {
  if (options.random) {
    options.random(bytes);
  } else {
    KV_CHECK(::getrandom(bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()));
  }
}

}  // namespace

uint64_t SegmentBytesFor(uint64_t device_bytes) {
  uint64_t bytes = FormatOptions().segment_bytes;
  while (bytes > kMinSegmentBytes && bytes * 8 > device_bytes) bytes /= 2;
  return bytes;
}

absl::StatusOr<Superblock> FormatOpenDevice(Device* device, const FormatOptions& options) {
  const uint64_t bytes = device->info().bytes;
  KV_RETURN_IF_ERROR(CheckSizes(device->info().path, bytes, options.segment_bytes));
  if (!options.force) {
    const AlignedBuffer head(kFirstSlotOffset);
    KV_RETURN_IF_ERROR(ReadNow(device, IoClass::kDemand, 0, head.span()));
    KV_RETURN_IF_ERROR(CheckMayFormat(device->info().path, head.span()));
  }
  Superblock superblock;
  FillRandom(options, superblock.uuid);
  FillRandom(options, superblock.secret);
  superblock.seq = 1;
  superblock.segment_bytes = options.segment_bytes;
  superblock.slots = std::min((bytes - kFirstSlotOffset) / options.segment_bytes, kMaxSlots);
  superblock.created_at = static_cast<uint64_t>(::time(nullptr));
  // First nobody's, so that an end halfway leaves no old superblock over new zeros.
  KV_RETURN_IF_ERROR(WriteZeros(device, 0, kFirstSlotOffset, nullptr));
  KV_RETURN_IF_ERROR(SyncNow(device, IoClass::kDemand));
  const uint64_t end = superblock.device_bytes();
  if (options.overwrite) {
    KV_RETURN_IF_ERROR(WriteZeros(device, kFirstSlotOffset, end, [&](uint64_t done) {
      if (options.progress) options.progress(done, end);
    }));
  }
  KV_RETURN_IF_ERROR(WriteCopy(device, 1, superblock));
  KV_RETURN_IF_ERROR(WriteCopy(device, 0, superblock));
  if (options.progress) options.progress(end, end);
  return superblock;
}

absl::StatusOr<Superblock> FormatDevice(const std::string& path, const FormatOptions& options) {
  struct stat before;
  const bool is_new = options.bytes > 0 && ::lstat(path.c_str(), &before) != 0;
  // Before there is a file that would be left behind.
  if (is_new) KV_RETURN_IF_ERROR(CheckSizes(path, options.bytes, options.segment_bytes));
  KV_ASSIGN_OR_RETURN(DeviceFile file, OpenDeviceFile(path, {.create = options.bytes > 0}));
  const uint64_t bytes =
      options.bytes > 0 && !file.block_device ? options.bytes / kUnit * kUnit : file.bytes;
  KV_RETURN_IF_ERROR(CheckSizes(path, bytes, options.segment_bytes));
  // Looked at before anything of it is changed, its size too.
  if (!options.force) {
    const AlignedBuffer head(kFirstSlotOffset);
    const ssize_t got = ::pread(file.fd.get(), head.data(), head.size(), 0);
    if (got < 0) {
      return absl::InternalError(
          absl::StrFormat("%s cannot be read: %s", path, std::generic_category().message(errno)));
    }
    KV_RETURN_IF_ERROR(CheckMayFormat(path, head.span().first(static_cast<size_t>(got))));
  }
  FormatOptions inner = options;
  inner.force = true;
  const absl::StatusOr<Superblock> made = [&]() -> absl::StatusOr<Superblock> {
    KV_RETURN_IF_ERROR(AllocateFile(&file, bytes));
    const std::unique_ptr<Device> device = NewDevice(std::move(file), {});
    return FormatOpenDevice(device.get(), inner);
  }();
  // The next start would take it for something of somebody else's.
  if (!made.ok() && is_new) ::unlink(path.c_str());
  return made;
}

absl::StatusOr<Superblock> ReadSuperblock(Device* device, const DeviceUuid* expected) {
  absl::StatusOr<Superblock> copies[2] = {ReadCopy(device, 0), ReadCopy(device, 1)};
  for (const auto& copy : copies) {
    if (absl::IsFailedPrecondition(copy.status())) return WithPath(*device, copy.status());
  }
  if (!copies[0].ok() && !copies[1].ok()) {
    for (const auto& copy : copies) {
      if (!absl::IsDataLoss(copy.status())) return copy.status();
    }
    const AlignedBuffer head(kFirstSlotOffset);
    const bool readable = kFirstSlotOffset <= device->info().bytes &&
                          ReadNow(device, IoClass::kDemand, 0, head.span()).ok();
    const bool ours = readable && (HasSuperblockMagic(head.span()) ||
                                   HasSuperblockMagic(head.span().subspan(kSuperblockOffsets[1])));
    if (!ours) {
      return absl::NotFoundError(
          absl::StrFormat("%s is no kvarve device: make it one with 'kvarve device format %s'",
                          device->info().path, device->info().path));
    }
    return absl::DataLossError(absl::StrFormat(
        "%s: both superblocks are damaged: give its contents up with 'kvarve device format %s "
        "--force'",
        device->info().path, device->info().path));
  }
  const int best = !copies[0].ok() || (copies[1].ok() && copies[1]->seq > copies[0]->seq) ? 1 : 0;
  const Superblock superblock = *copies[best];
  if (expected != nullptr && superblock.uuid != *expected) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "%s is device %s, but %s is configured: check the order of the paths, or remove the one "
        "and add the other with 'kvarve device remove' and 'add'",
        device->info().path, UuidText(superblock.uuid), UuidText(*expected)));
  }
  if (superblock.device_bytes() > device->info().bytes) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "%s has %d bytes, its superblock says %d: it was cut; restore its size, or format it anew",
        device->info().path, device->info().bytes, superblock.device_bytes()));
  }
  return superblock;
}

absl::Status BeginEpoch(Device* device, Superblock* superblock, uint64_t epoch_seen) {
  superblock->epoch = std::max(superblock->epoch, epoch_seen) + 1;
  superblock->seq += 1;
  for (int copy = 0; copy < 2; ++copy) {
    KV_RETURN_IF_ERROR(WriteCopy(device, copy, *superblock));
    const auto written = ReadCopy(device, copy);
    if (!written.ok() || written->seq != superblock->seq) {
      return absl::DataLossError(absl::StrFormat(
          "%s does not keep its superblock: it is failing, replace it", device->info().path));
    }
  }
  return absl::OkStatus();
}

}  // namespace kvarve
