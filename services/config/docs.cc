#include "services/config/docs.h"

#include <string_view>

#include "absl/strings/str_format.h"
#include "services/config/settings.h"

namespace kvarve {
namespace {

constexpr char kIntroduction[] = R"(# Configuration of kvarved

This page is made from the table of settings: `kvarved --print-docs > docs/configuration.md`.

A setting is taken from, each over the one before:

1. its default;
2. the YAML file given with `--config FILE` or `KVARVE_CONFIG`, else `/etc/kvarve/kvarved.yaml` if it is there; nested
   maps and dotted keys are the same;
3. the environment: `KVARVE_ARENA_CAPACITY_BYTES` is `arena.capacity_bytes`;
4. a flag: `--arena.capacity_bytes 64GiB`.

```yaml
arena:
  capacity_bytes: 50%
log.level: debug
```

A name that is not in this table is an error, and so is a value out of its range; each message names the setting, where
the value came from and an example. `kvarved --check` validates, reads the files of credentials that settings name (as the
user that it runs as), and exits; `kvarved --print-config` shows the effective values and where each came from. In the environment only names that begin like a section (`KVARVE_ARENA_`) or nearly
match a setting are checked: other programs and cluster service variables share the prefix.

Sizes: `4096`, `64KiB`, `1.5GiB` (powers of two). Durations: `100us`, `20ms`, `5s`, `1m`. Lists: `a,b`, or a YAML
sequence, or the flag several times.
)";

std::string Code(std::string_view text) {
  return text.empty() ? "(empty)" : "`" + std::string(text) + "`";
}

}  // namespace

std::string ConfigurationMarkdown() {
  std::string text = kIntroduction;
  for (const SettingSection& section : SettingSections()) {
    text += absl::StrFormat(
        "\n## %s\n\n| setting | type and range | default | what it does |\n|---|---|---|---|\n",
        section.title);
    for (const Setting& setting : Settings()) {
      if (!setting.name.starts_with(std::string(section.name) + ".")) continue;
      const std::string range = RangeText(setting);
      text += absl::StrFormat("| `%s` | %s%s | %s | %s |\n", setting.name, TypeName(setting.type),
                              range.empty() ? "" : ": " + range, Code(setting.default_text),
                              setting.help);
    }
  }
  return text;
}

}  // namespace kvarve
