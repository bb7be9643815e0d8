#include "common/scd/evaluate/svg_plot.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>

#include "spdlog/fmt/fmt.h"

namespace baton {
namespace {

constexpr double kLeft = 70, kTop = 34, kPlotWidth = 470, kPlotHeight = 300, kLegend = 230,
                 kBottom = 52;

constexpr std::array<const char*, 10> kColours = {"#1f77b4", "#d62728", "#2ca02c", "#ff7f0e",
                                                  "#9467bd", "#8c564b", "#e377c2", "#17becf",
                                                  "#7f7f7f", "#bcbd22"};

// One direction of a plot.
class Axis {
 public:
  Axis(bool log, double from, double to) : log_(log), from_(from), to_(to) {}

  bool Shows(double x) const { return std::isfinite(x) && (!log_ || x > 0); }
  void Cover(double x) {
    least_ = std::min(least_, Value(x));
    most_ = std::max(most_, Value(x));
  }
  bool empty() const { return least_ > most_; }
  // Some room around what is covered; linear axes begin at 0.
  void Close() {
    if (!log_) least_ = std::min(least_, 0.0);
    if (most_ - least_ < 1e-12) most_ = least_ + 1;
    const double room = 0.05 * (most_ - least_);
    most_ += room;
    if (log_) least_ -= room;
  }
  double At(double x) const {
    return from_ + (Value(x) - least_) / (most_ - least_) * (to_ - from_);
  }
  // Where lines of the grid go.
  std::vector<double> Ticks() const { return log_ ? LogTicks() : LinearTicks(); }

 private:
  double Value(double x) const { return log_ ? std::log10(x) : x; }

  // 1, 2 and 5 times powers of ten.
  std::vector<double> LogTicks() const {
    std::vector<double> ticks;
    for (double power = std::floor(least_); power <= most_; ++power) {
      for (const double digit : {1.0, 2.0, 5.0}) {
        const double tick = digit * std::pow(10, power);
        if (Value(tick) >= least_ && Value(tick) <= most_) ticks.push_back(tick);
      }
    }
    return ticks;
  }
  std::vector<double> LinearTicks() const {
    const double power = std::pow(10, std::floor(std::log10((most_ - least_) / 4)));
    double step = power;
    for (const double digit : {2.0, 5.0, 10.0}) {
      if ((most_ - least_) / step > 6) step = digit * power;
    }
    std::vector<double> ticks;
    for (double i = std::ceil(least_ / step); i * step <= most_; ++i) ticks.push_back(i * step);
    return ticks;
  }

  const bool log_;
  const double from_, to_;  // pixels
  double least_ = std::numeric_limits<double>::infinity();
  double most_ = -std::numeric_limits<double>::infinity();
};

std::string Text(double x, double y, const char* anchor, std::string_view text,
                 std::string_view more = "") {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\"{}>{}</text>\n", x, y,
                     anchor, more, EscapeXml(text));
}

std::string Line(double x1, double y1, double x2, double y2, const char* colour) {
  return fmt::format(
      "<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"{}\"/>\n", x1, y1, x2,
      y2, colour);
}

std::string Frame(const Plot& plot, const Axis& x, const Axis& y) {
  std::string out;
  for (const double tick : x.Ticks()) {
    out += Line(x.At(tick), kTop, x.At(tick), kTop + kPlotHeight, "#ddd");
    out += Text(x.At(tick), kTop + kPlotHeight + 16, "middle", fmt::format("{:.6g}", tick));
  }
  for (const double tick : y.Ticks()) {
    out += Line(kLeft, y.At(tick), kLeft + kPlotWidth, y.At(tick), "#ddd");
    out += Text(kLeft - 6, y.At(tick) + 4, "end", fmt::format("{:.6g}", tick));
  }
  out += fmt::format(
      "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"none\" stroke=\"#444\"/>\n", kLeft,
      kTop, kPlotWidth, kPlotHeight);
  out += Text(kLeft + kPlotWidth / 2, kTop + kPlotHeight + 38, "middle", plot.x_label);
  const double middle = kTop + kPlotHeight / 2;
  out += Text(16, middle, "middle", plot.y_label,
              fmt::format(" transform=\"rotate(-90 16 {:.1f})\"", middle));
  return out;
}

std::string Curve(const PlotSeries& series, const Axis& x, const Axis& y, const char* colour) {
  std::string points, dots;
  for (const auto& [px, py] : series.points) {
    if (!x.Shows(px) || !y.Shows(py)) continue;
    points += fmt::format("{:.1f},{:.1f} ", x.At(px), y.At(py));
    dots += fmt::format(
        "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\" fill=\"{}\"><title>{}: {:.5g}, "
        "{:.5g}</title></circle>\n",
        x.At(px), y.At(py), colour, EscapeXml(series.name), px, py);
  }
  return fmt::format("<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"1.5\"/>\n",
                     points, colour) +
         dots;
}

}  // namespace

std::string EscapeXml(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        // XML knows no other control characters, escaped or not.
        out += static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\t' ? ' ' : c;
    }
  }
  return out;
}

std::string SvgPlot(const Plot& plot) {
  Axis x(plot.log_x, kLeft, kLeft + kPlotWidth);
  Axis y(plot.log_y, kTop + kPlotHeight, kTop);
  for (const PlotSeries& series : plot.series) {
    for (const auto& [px, py] : series.points) {
      if (!x.Shows(px) || !y.Shows(py)) continue;
      x.Cover(px);
      y.Cover(py);
    }
  }
  const double width = kLeft + kPlotWidth + kLegend, height = kTop + kPlotHeight + kBottom;
  std::string out = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" "
      "height=\"{1}\" font-family=\"sans-serif\" font-size=\"12\">\n",
      width, height);
  out += Text(kLeft, 20, "start", plot.title, " font-weight=\"bold\"");
  if (x.empty()) return out + Text(kLeft, kTop + 20, "start", "nothing to show") + "</svg>\n";
  x.Close();
  y.Close();
  out += Frame(plot, x, y);
  double legend = kTop + 10;
  for (std::size_t i = 0; i < plot.series.size(); ++i) {
    const char* colour = kColours[i % kColours.size()];
    out += Curve(plot.series[i], x, y, colour);
    const double at = kLeft + kPlotWidth + 14;
    out += fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"10\" height=\"10\" fill=\"{}\"/>\n",
                       at, legend - 9, colour);
    out += Text(at + 16, legend, "start", plot.series[i].name);
    legend += 18;
  }
  return out + "</svg>\n";
}

}  // namespace baton
