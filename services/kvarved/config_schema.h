// The table of settings as a JSON schema: what a section and a setting of a YAML file may be. The
// Helm chart's values, the man pages and the completion of flags are made from it. THREADS: any.
#ifndef KVARVE_SERVICES_KVARVED_CONFIG_SCHEMA_H_
#define KVARVE_SERVICES_KVARVED_CONFIG_SCHEMA_H_

#include <string>

namespace kvarve {

// Draft 2020-12, one object with a property for each section, indented by two spaces, with a final
// newline. It is at most as strict as the daemon: sums of settings and ranges of sizes are the
// daemon's to check.
std::string ConfigSchemaJson();

}  // namespace kvarve

#endif  // KVARVE_SERVICES_KVARVED_CONFIG_SCHEMA_H_
