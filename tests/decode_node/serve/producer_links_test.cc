#include "decode_node/serve/producer_links.h"

#include <future>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/node/space_proto.h"
#include "gtest/gtest.h"

namespace baton {
namespace {

absl::Status GetAndWait(ProducerLinks& links, const std::string& address) {
  std::promise<absl::Status> done;
  links.Get(address, "m", Space{},
            [&](ProducerLinks::Result result) { done.set_value(result.status()); });
  return done.get_future().get();
}

TEST(ProducerLinksTest, ProducersOfThePastAreForgotten) {
  ProducerLinksOptions options;
  options.self = MakeIdentity("test", 1, "decode");
  options.timeout = std::chrono::milliseconds(50);
  options.idle = std::chrono::milliseconds(200);
  ProducerLinks links(options);
  for (int i = 0; i < 5; ++i) {
    // Nobody listens on these ports.
    EXPECT_FALSE(GetAndWait(links, absl::StrCat("127.0.0.1:", i + 1)).ok());
  }
  EXPECT_FALSE(GetAndWait(links, "no address").ok());
  std::this_thread::sleep_for(2 * options.idle);
  EXPECT_FALSE(GetAndWait(links, "127.0.0.1:9").ok());
  EXPECT_EQ(links.known(), 1u);
}

}  // namespace
}  // namespace baton
