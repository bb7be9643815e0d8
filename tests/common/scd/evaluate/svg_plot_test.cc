#include "common/scd/evaluate/svg_plot.h"

#include <limits>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/common/scd/evaluate/well_formed.h"

namespace baton {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(SvgPlotTest, DrawsWhatIsThere) {
  const std::string svg =
      SvgPlot({.title = "rate & <quality>",
               .x_label = "bytes",
               .y_label = "KL",
               .log_x = true,
               .log_y = true,
               .series = {{"a \"b\"", {{100, 0.01}, {1000, 0.1}, {0, 1}}}, {"c", {{500, 2}}}}});
  EXPECT_TRUE(IsWellFormed(svg)) << svg;
  EXPECT_THAT(svg, HasSubstr("rate &amp; &lt;quality&gt;"));
  EXPECT_THAT(svg, HasSubstr("a &quot;b&quot;: 100, 0.01"));
  // Nothing at 0 on a logarithmic axis.
  EXPECT_THAT(svg, Not(HasSubstr("a &quot;b&quot;: 0, 1")));
  EXPECT_THAT(svg, HasSubstr(">500<"));  // a line of the grid
}

TEST(SvgPlotTest, NothingIsSaidToBeNothing) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const std::string svg =
      SvgPlot({.title = "t", .x_label = "x", .y_label = "y", .series = {{"a", {{nan, 1}}}}});
  EXPECT_TRUE(IsWellFormed(svg));
  EXPECT_THAT(svg, HasSubstr("nothing to show"));
}

TEST(SvgPlotTest, OnePointAndConstantsHaveAPlace) {
  for (const double y : {0.0, 3.0}) {
    const std::string svg = SvgPlot(
        {.title = "t", .x_label = "x", .y_label = "y", .series = {{"a", {{1, y}, {2, y}}}}});
    EXPECT_TRUE(IsWellFormed(svg));
    EXPECT_THAT(svg, Not(HasSubstr("nan")));
    EXPECT_THAT(svg, Not(HasSubstr("inf")));
  }
}

}  // namespace
}  // namespace baton
