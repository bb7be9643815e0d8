// Line plots as SVG, drawn here so that a report needs nothing from elsewhere.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace baton {

struct PlotSeries {
  std::string name;
  std::vector<std::pair<double, double>> points;  // joined in this order; a dot at each
};

struct Plot {
  std::string title;
  std::string x_label;
  std::string y_label;
  bool log_x = false;  // points at or below 0 are left out then
  bool log_y = false;
  std::vector<PlotSeries> series;
};

// An <svg> element. Points that are not finite are left out; a plot of none says so.
std::string SvgPlot(const Plot& plot);

// For text between tags and in quoted attributes of XML and HTML.
std::string EscapeXml(std::string_view text);

}  // namespace baton
