// Opens what the configuration names: the catalogue, and the devices of the NVMe tier.
// THREADS: one at a time.  BLOCKS: on the devices.
#ifndef KVARVE_SERVICES_KVARVED_DEVICES_H_
#define KVARVE_SERVICES_KVARVED_DEVICES_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "services/kvarved/options.h"
#include "storage/cache/cache.h"
#include "storage/catalogue/catalogue.h"

namespace kvarve {

// Never fails: without a folder, or where none can be opened, nothing is kept.
std::unique_ptr<Catalogue> OpenCatalogueOf(const NvmeOptions& nvme);

// Adds one device; a file that does not exist is made first if the options say how large. Fails
// with what to do when it is not a device of kvarve's, or of a later version; in use; or broken.
absl::Status AddDeviceOf(const NvmeOptions& nvme, const std::string& path, Cache* cache);

// All of them. A device that fails to be read is left out, with an error in the log: the daemon
// goes on without it. What only people can set right is an error.
absl::Status AddDevicesOf(const NvmeOptions& nvme, Cache* cache);

}  // namespace kvarve

#endif  // KVARVE_SERVICES_KVARVED_DEVICES_H_
