// Where the tables of sealed segments and a few facts of the daemon are kept between starts, so
// that a start need not read every footer. It may be lost at any time: what it holds can be made
// again from the devices, and values carry their own checks (storage/segment/format.h).
//
// THREADS: any.  BLOCKS: on the disk it lies on.
#ifndef KVARVE_STORAGE_CATALOGUE_CATALOGUE_H_
#define KVARVE_STORAGE_CATALOGUE_CATALOGUE_H_

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace kvarve {

using CatalogueDevice = std::array<uint8_t, 16>;  // a device's uuid

class Catalogue {
 public:
  virtual ~Catalogue() = default;

  // One value a segment. None: there is none, or it cannot be read.
  virtual std::optional<std::string> Get(const CatalogueDevice& device, uint64_t segment_id) = 0;
  virtual absl::Status Put(const CatalogueDevice& device, uint64_t segment_id,
                           std::string_view value) = 0;
  virtual absl::Status Delete(const CatalogueDevice& device, uint64_t segment_id) = 0;
  // Ascending.
  virtual std::vector<uint64_t> Segments(const CatalogueDevice& device) = 0;

  // Small facts by name: the write budget's level, what was hot at the last polite stop.
  virtual std::optional<std::string> GetMeta(std::string_view name) = 0;
  virtual absl::Status PutMeta(std::string_view name, std::string_view value) = 0;

  // Writes that failed since it was opened.
  virtual uint64_t errors() const = 0;
};

// Keeps nothing between starts.
std::unique_ptr<Catalogue> NewMemoryCatalogue();

// A RocksDB database in folder `path`, made for its owner alone if it is missing. Internal, with
// RocksDB's text: locked by another process, damaged, or the folder cannot be written.
absl::StatusOr<std::unique_ptr<Catalogue>> OpenRocksCatalogue(const std::string& path);

struct OpenedCatalogue {
  std::unique_ptr<Catalogue> catalogue;
  bool rebuilt = false;  // what was there was damaged and is gone
  bool memory = false;   // nothing will be kept
  std::string reason;    // of either
};
// Never fails and never keeps a daemon from starting: a damaged database is deleted and made anew,
// and where none can be opened (locked, no space, no right) one in memory does for this start.
OpenedCatalogue OpenCatalogue(const std::string& path);

}  // namespace kvarve

#endif  // KVARVE_STORAGE_CATALOGUE_CATALOGUE_H_
