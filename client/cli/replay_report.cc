#include "client/cli/replay_report.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "absl/strings/str_format.h"
#include "storage/base/units.h"

namespace kvarve::cli {
namespace {

constexpr double kWidth = 640, kHeight = 300, kLeft = 60, kBottom = 40, kTop = 16, kRight = 110;

struct Line {
  const char* name;
  const char* colour;
  std::function<double(const ReplayRow&)> value;
};

std::string Escaped(const std::string& text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '<' || c == '>' || c == '&' || c == '"') {
      escaped += absl::StrFormat("&#%d;", static_cast<int>(c));
    } else {
      escaped += c;
    }
  }
  return escaped;
}

// Values against capacity (log scale), as inline SVG.
std::string Plot(const ReplayReport& report, const std::string& title,
                 const std::vector<Line>& lines) {
  double top = 0, first = 1e300, last = 0;
  for (const ReplayRow& row : report.rows) {
    for (const Line& line : lines) top = std::max(top, line.value(row));
    first = std::min(first, row.share);
    last = std::max(last, row.share);
  }
  if (top == 0) return "";
  const double span = std::max(std::log(last / first), 1e-9);
  const auto x = [&](double share) {
    return kLeft + std::log(share / first) / span * (kWidth - kLeft - kRight);
  };
  const auto y = [&](double value) {
    return kTop + (1 - value / top) * (kHeight - kTop - kBottom);
  };
  std::string svg = absl::StrFormat(
      "<h2>%s</h2><svg viewBox=\"0 0 %.0f %.0f\" width=\"%.0f\" role=\"img\" font-size=\"11\">\n",
      title, kWidth, kHeight, kWidth);
  for (int i = 0; i <= 4; ++i) {
    const double value = top * i / 4;
    svg += absl::StrFormat(
        "<line x1=\"%.0f\" x2=\"%.0f\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"#ddd\"/>"
        "<text x=\"%.0f\" y=\"%.1f\" text-anchor=\"end\">%.3g</text>\n",
        kLeft, kWidth - kRight, y(value), y(value), kLeft - 6, y(value) + 4, value);
  }
  for (const ReplayRow& row : report.rows) {
    svg += absl::StrFormat("<text x=\"%.1f\" y=\"%.0f\" text-anchor=\"middle\">%.3g %%</text>\n",
                           x(row.share), kHeight - kBottom + 18, row.share * 100);
  }
  double label = kTop + 10;
  for (const Line& line : lines) {
    svg += absl::StrFormat("<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"2\" points=\"",
                           line.colour);
    for (const ReplayRow& row : report.rows)
      svg += absl::StrFormat("%.1f,%.1f ", x(row.share), y(line.value(row)));
    svg += absl::StrFormat("\"/><text x=\"%.0f\" y=\"%.0f\" fill=\"%s\">%s</text>\n",
                           kWidth - kRight + 8, label, line.colour, Escaped(line.name));
    label += 16;
  }
  return svg + "</svg>\n";
}

}  // namespace

std::string ReplayPage(const ReplayReport& report) {
  std::string page = absl::StrFormat(
      "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>kvarve replay</title>"
      "<style>body{font-family:sans-serif;max-width:50em;margin:2em auto}"
      "td,th{padding:.2em .6em;text-align:right}</style>\n"
      "<h1>%s</h1><p>%d requests over %.0f s, %d block references, %d unique blocks of %s. "
      "Capacity is the host tier's, as a share of the unique blocks; policy %s%s.</p>\n",
      Escaped(report.trace), report.requests, report.span_seconds, report.references,
      report.unique_blocks, FormatBytes(report.block_bytes), Escaped(report.policy),
      report.nvme_share > 0 ? absl::StrFormat(", NVMe %.3g %%", report.nvme_share * 100) : "");
  page += Plot(report, "Hit ratio",
               {{report.policy.c_str(), "#c22", [](const ReplayRow& r) { return r.hit_ratio; }},
                {"LRU", "#888", [](const ReplayRow& r) { return r.lru; }},
                {"S3-FIFO", "#26c", [](const ReplayRow& r) { return r.s3fifo; }},
                {"Belady", "#2a2", [](const ReplayRow& r) { return r.belady; }}});
  page += Plot(report, "Prefill seconds saved",
               {{"saved", "#c22", [](const ReplayRow& r) { return r.saved_seconds; }}});
  page += Plot(report, "Drive writes a day",
               {{"DWPD", "#c22", [](const ReplayRow& r) { return r.drive_writes_per_day; }}});
  page +=
      "<table><tr><th>share<th>host<th>hits<th>1st half<th>2nd "
      "half<th>LRU<th>S3-FIFO<th>Belady<th>saved s<th>DWPD\n";
  for (const ReplayRow& row : report.rows) {
    page += absl::StrFormat(
        "<tr><td>%.3g %%<td>%s<td>%.4f<td>%.4f<td>%.4f<td>%.4f<td>%.4f<td>%.4f<td>%.0f<td>%.2f\n",
        row.share * 100, FormatBytes(row.host_bytes), row.hit_ratio, row.first_half,
        row.second_half, row.lru, row.s3fifo, row.belady, row.saved_seconds,
        row.drive_writes_per_day);
  }
  return page + "</table></html>\n";
}

}  // namespace kvarve::cli
