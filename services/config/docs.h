// docs/configuration.md, made from the table.
// THREADS: any.
#ifndef KVARVE_SERVICES_CONFIG_DOCS_H_
#define KVARVE_SERVICES_CONFIG_DOCS_H_

#include <string>

namespace kvarve {

std::string ConfigurationMarkdown();

}  // namespace kvarve

#endif  // KVARVE_SERVICES_CONFIG_DOCS_H_
