// The files of credentials that the settings name, read as a start reads them. Folders, sockets and
// devices are not among them: looking at those is a start.
// THREADS: any.  BLOCKS: on the files.
#ifndef KVARVE_SERVICES_KVARVED_CHECK_FILES_H_
#define KVARVE_SERVICES_KVARVED_CHECK_FILES_H_

#include <string>
#include <vector>

#include "services/config/config.h"
#include "services/kvarved/options.h"

namespace kvarve {

// One sentence each: the setting, where it came from, the file, and what to do.
std::vector<std::string> BadFiles(const Config& config, const DaemonOptions& options);

}  // namespace kvarve

#endif  // KVARVE_SERVICES_KVARVED_CHECK_FILES_H_
