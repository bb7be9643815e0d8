#include "common/node/http_status.h"

#include <atomic>
#include <boost/asio.hpp>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace baton {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

std::string Send(int port, const std::string& request) {
  boost::asio::io_context context;
  boost::asio::ip::tcp::socket socket(context);
  socket.connect({boost::asio::ip::make_address("127.0.0.1"), static_cast<unsigned short>(port)});
  boost::asio::write(socket, boost::asio::buffer(request));
  std::string answer;
  boost::system::error_code e;
  boost::asio::read(socket, boost::asio::dynamic_buffer(answer), e);
  return answer;
}

std::string Get(int port, const std::string& path) {
  return Send(port, absl::StrCat("GET ", path, " HTTP/1.1\r\nHost: x\r\n\r\n"));
}

TEST(HttpStatusTest, ServesMetricsHealthAndReadiness) {
  MetricRegistry metrics;
  metrics.AddCounter("baton_test_total", "A test.").Increment(3);
  std::atomic<bool> ready{false};
  auto http = HttpStatus::Start({"127.0.0.1", 0, [&] { return ready.load(); }}, metrics);
  ASSERT_TRUE(http.ok()) << http.status();
  const int port = (*http)->port();
  EXPECT_THAT(Get(port, "/metrics"), HasSubstr("baton_test_total 3"));
  EXPECT_THAT(Get(port, "/health"), StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(Get(port, "/readyz"), StartsWith("HTTP/1.1 503"));
  ready = true;
  EXPECT_THAT(Get(port, "/readyz"), StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(Get(port, "/other"), StartsWith("HTTP/1.1 404"));
  EXPECT_THAT(Send(port, "POST /health HTTP/1.1\r\nHost: x\r\n\r\n"), StartsWith("HTTP/1.1 405"));
  Send(port, "not http\r\n\r\n");
  EXPECT_THAT(Get(port, "/health"), StartsWith("HTTP/1.1 200"));
}

TEST(HttpStatusTest, PortInUseNamesIt) {
  auto first = HttpStatus::Start({"127.0.0.1", 0, {}}, MetricRegistry());
  ASSERT_TRUE(first.ok());
  auto second = HttpStatus::Start({"127.0.0.1", (*first)->port(), {}}, MetricRegistry());
  EXPECT_EQ(second.status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(second.status().message()),
              HasSubstr(absl::StrCat("127.0.0.1:", (*first)->port())));
  EXPECT_EQ(HttpStatus::Start({"nonsense", 0, {}}, MetricRegistry()).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace baton
