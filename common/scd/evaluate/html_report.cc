#include "common/scd/evaluate/html_report.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "common/base/strings.h"
#include "common/scd/evaluate/evaluation_report.h"

namespace baton {
namespace {

Plot RatePlot(const Evaluation& e, const DocumentTable& table) {
  Plot plot{.title = Cat("Rate and quality: ", table.name),
            .x_label = "bytes a token",
            .y_label = "KL to oracle, nats a token",
            .log_x = true,
            .log_y = true,
            .series = {}};
  for (std::size_t i = 0; i < e.ways.size(); ++i) {
    auto series = std::find_if(plot.series.begin(), plot.series.end(),
                               [&](const PlotSeries& s) { return s.name == e.ways[i].family; });
    if (series == plot.series.end()) {
      plot.series.push_back({e.ways[i].family, {}});
      series = plot.series.end() - 1;
    }
    series->points.emplace_back(e.ways[i].bytes_per_token, table.rows[i].kl);
  }
  for (PlotSeries& series : plot.series) std::sort(series.points.begin(), series.points.end());
  return plot;
}

Plot StatePlot(const Evaluation& e, std::string title, std::vector<double> StateErrors::*errors) {
  Plot plot{.title = std::move(title),
            .x_label = "layer",
            .y_label = "relative error",
            .log_x = false,
            .log_y = false,
            .series = {}};
  for (std::size_t i = 0; i < e.ways.size(); ++i) {
    if (!e.ways[i].is_default) continue;
    PlotSeries series{e.ways[i].name, {}};
    const std::vector<double>& layers = e.state_errors[i].*errors;
    for (std::size_t layer = 0; layer < layers.size(); ++layer) {
      series.points.emplace_back(static_cast<double>(layer), layers[layer]);
    }
    plot.series.push_back(std::move(series));
  }
  return plot;
}

std::string HtmlTable(const TextTable& table) {
  std::string out = "<table>\n<tr>";
  for (const std::string& cell : table.head) out += Cat("<th>", EscapeXml(cell), "</th>");
  out += "</tr>\n";
  for (const auto& row : table.rows) {
    out += "<tr>";
    for (const std::string& cell : row) out += Cat("<td>", EscapeXml(cell), "</td>");
    out += "</tr>\n";
  }
  return out + "</table>\n";
}

constexpr const char* kHead =
    "<!DOCTYPE html>\n"
    "<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n<title>What handing over K/V "
    "costs</title>\n<style>\nbody { font: 14px sans-serif; margin: 2em; max-width: 1100px; }\n"
    "table { border-collapse: collapse; font-variant-numeric: tabular-nums; }\n"
    "th, td { border: 1px solid #ccc; padding: 2px 8px; text-align: right; }\n"
    "th:first-child, td:first-child { text-align: left; }\n</style>\n</head>\n<body>\n"
    "<h1>What handing over K/V costs</h1>\n";

}  // namespace

std::vector<Plot> EvaluationPlots(const Evaluation& e) {
  std::vector<Plot> plots;
  for (const DocumentTable& table : e.document_tables) plots.push_back(RatePlot(e, table));
  plots.push_back(StatePlot(e, "r_K: keys of the prefix, by layer", &StateErrors::keys));
  plots.push_back(StatePlot(e, "r_V: values of the prefix, by layer", &StateErrors::values));
  plots.push_back(
      StatePlot(e, "Hidden states of the tokens after it, by layer", &StateErrors::hidden));
  return plots;
}

std::string EvaluationHtml(const Evaluation& e) {
  std::string out = kHead;
  out += "<ul>\n";
  for (const std::string& fact : EvaluationFacts(e)) out += Cat("<li>", EscapeXml(fact), "</li>\n");
  out += "</ul>\n";
  for (const Plot& plot : EvaluationPlots(e)) out += SvgPlot(plot);
  for (const TextTable& table : EvaluationTables(e)) {
    out += Cat("<h2>", EscapeXml(table.title), "</h2>\n<p>", EscapeXml(table.note), "</p>\n",
               HtmlTable(table));
  }
  return out + "</body>\n</html>\n";
}

}  // namespace baton
