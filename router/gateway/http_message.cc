#include "router/gateway/http_message.h"

#include <boost/beast/http/status.hpp>

namespace baton {

std::string_view HttpReason(int status) {
  if (status == 499) return "Client Closed Request";
  const auto reason =
      boost::beast::http::obsolete_reason(boost::beast::http::int_to_status(status));
  return {reason.data(), reason.size()};
}

}  // namespace baton
