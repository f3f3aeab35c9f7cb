#include "engine/base/redact.h"

#include <nlohmann/json.hpp>

#include "engine/base/json.h"
#include "test/support/catch.h"

using namespace dstrain;

TEST_CASE("names of secrets are known by their words", "[redact]") {
  for (const char* name :
       {"WANDB_API_KEY", "HF_TOKEN", "hf-token", "NCCL_AUTH", "CUDA_PASSPHRASE", "DSTRAIN_BEARER",
        "DSTRAIN_JOB_SECRET", "DB_PASSWORD", "db_passwd", "MYSQL_PWD", "SMTP_PASS", "api_key_file",
        "GOOGLE_APPLICATION_CREDENTIALS", "AWS_SECRET_ACCESS_KEY", "SESSION_COOKIE", "BEARER_X"}) {
    CAPTURE(name);
    CHECK(is_secret_name(name));
  }
  for (const char* name : {"PWD", "OLDPWD", "PATH", "HOME", "SSH_AUTH_SOCK", "XAUTHORITY",
                           "TOKENIZERS_PARALLELISM", "MAX_TOKENS", "GIT_ASKPASS", "NCCL_DEBUG",
                           "KEYBOARD", "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", ""}) {
    CAPTURE(name);
    CHECK_FALSE(is_secret_name(name));
  }
}

TEST_CASE("a value is struck out however a text writes it", "[redact]") {
  for (const std::string value : {"plain-value", "with \"quotes\"", "back\\slash", "tab\tinside",
                                  "line one\nline two", "\x1b[31mred", "sch\xc3\xb6n geheim"}) {
    CAPTURE(value);
    const Redactor redactor({"SOME_KEY=" + value, "OTHER=public value"});
    std::string plain = "a " + value + " b " + value + " public value";
    redactor.apply(plain);
    CHECK(plain == "a [secret] b [secret] public value");
    std::string json = json_text(nlohmann::json{{"text", "x" + value + "y"}});
    redactor.apply(json);
    CHECK(json == R"({"text":"x[secret]y"})");
  }
  // Lines of one value that come in two pieces.
  const Redactor redactor({"PEM_KEY=first line\nsecond line\nend"});
  std::string piece = "second line\n";
  redactor.apply(piece);
  CHECK(piece == "[secret]\n");
  std::string chance = "the end";
  redactor.apply(chance);
  CHECK(chance == "the end");
}

TEST_CASE("short values stand in texts by chance, and long ones are found by name", "[redact]") {
  const Redactor redactor({"SHORT_KEY=adam", "LONG_TOKEN=0123456789abcdef"});
  std::string text = "adamw 0123456789abcdef";
  CHECK(redactor.find(text) == "LONG_TOKEN");
  redactor.apply(text);
  CHECK(text == "adamw [secret]");
  CHECK(redactor.find(text).empty());
}
