//! `token`: creates, lists and destroys tokens, and makes links to the console.

use clap::{Args, Subcommand};
use millpond_api::client::{Client, quoted};
use millpond_api::failure::{Failure, Outcome};
use millpond_api::{CreateLink, CreateToken, CreatedToken, Link, Role, Token, instant};

use super::candidates;
use super::columns::TOKEN;
use super::consent::Consent;
use crate::output::{Format, Listing, print, write_out};

/// Time after which a token expires unless another is given.
const EXPIRE: &str = "90d";
/// Word for a token that does not expire.
const NEVER: &str = "never";

/// Tokens for the console and the API over TCP
#[derive(Debug, Subcommand)]
#[command(after_help = "\
Example:
  millpond token create prometheus --role viewer --expire 365d
  curl -H 'Authorization: Bearer mpt_…' http://127.0.0.1:8420/metrics
  millpond token link")]
pub enum TokenVerb {
    Create(Create),
    List(List),
    Destroy(Destroy),
    Link(MakeLink),
}

/// Create a token; its secret is shown only now
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  millpond token create backup --role operator --pool tank --expire 30d

viewer reads; operator works with volumes, snapshots and exports; admin does everything.
The secret goes to standard output, the rest to standard error. The daemon keeps only a hash of it.")]
pub struct Create {
    /// Name of the token
    #[arg(value_name = "NAME")]
    name: String,
    /// Role of its bearer
    #[arg(long, value_enum, value_name = "ROLE")]
    role: Role,
    /// Only for this pool; may be given several times
    #[arg(long = "pool", value_name = "POOL", add = candidates::pools())]
    pools: Vec<String>,
    /// When it expires: a duration such as 90d, a time, or 'never'
    #[arg(long, value_name = "TIME", default_value = EXPIRE)]
    expire: String,
    /// Output format
    #[arg(long, value_enum, default_value_t, value_name = "FORMAT")]
    format: Format,
}

/// List tokens, without their secrets
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  millpond token list")]
pub struct List {
    #[command(flatten)]
    how: Listing,
}

/// Destroy a token: its bearer is refused at once
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  millpond token destroy backup -y")]
pub struct Destroy {
    /// Name of the token
    #[arg(value_name = "NAME", add = candidates::tokens())]
    name: String,
    #[command(flatten)]
    consent: Consent,
}

/// Print a link that opens the console once, within ten minutes
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  millpond token link\n  millpond token link --role viewer")]
pub struct MakeLink {
    /// Role of the session [default: your own]
    #[arg(long, value_enum, value_name = "ROLE")]
    role: Option<Role>,
    /// Output format
    #[arg(long, value_enum, default_value_t, value_name = "FORMAT")]
    format: Format,
}

impl TokenVerb {
    pub async fn run(self, client: &Client) -> Outcome {
        match self {
            TokenVerb::Create(create) => create.run(client).await,
            TokenVerb::List(list) => print(&client.get::<Vec<Token>>("/v1/tokens").await?, TOKEN, &list.how),
            TokenVerb::Destroy(destroy) => destroy.run(client).await,
            TokenVerb::Link(link) => link.run(client).await,
        }
    }
}

fn json<T: serde::Serialize>(value: &T) -> Outcome<String> {
    serde_json::to_string_pretty(value).map(|text| text + "\n").map_err(|e| Failure::failed(format!("cannot write JSON: {e}")))
}

impl Create {
    async fn run(self, client: &Client) -> Outcome {
        let expires = if self.expire == NEVER { None } else { Some(instant::parse_time(&self.expire, instant::now())?) };
        let request = CreateToken { name: self.name, role: self.role, pools: self.pools, expires };
        let created: CreatedToken = client.post("/v1/tokens", &request).await?;
        if self.format == Format::Json {
            return write_out(&json(&created)?);
        }
        let until = created.token.expires.map_or_else(|| "does not expire".to_owned(), |time| format!("expires {time}"));
        eprintln!("millpond: token '{}' ({}) {until}; its secret is shown only now", created.token.name, created.token.role);
        write_out(&format!("{}\n", created.secret))
    }
}

impl Destroy {
    async fn run(self, client: &Client) -> Outcome {
        let tokens: Vec<Token> = client.get("/v1/tokens").await?;
        let Some(token) = tokens.iter().find(|token| token.name == self.name) else {
            return Err(Failure::failed(format!("no token '{}'; see 'millpond token list'", self.name)));
        };
        let used = token.last_used.map_or_else(|| "not used since the daemon started".to_owned(), |time| format!("last used {time}"));
        if self.consent.dry_run {
            return write_out(&format!("token {} ({}, {used}) would be destroyed\n", token.name, token.role));
        }
        self.consent.ask("destroy", &format!("token {} ({}, {used})", token.name, token.role))?;
        client.delete(&format!("/v1/tokens/{}", quoted(&self.name))).await
    }
}

impl MakeLink {
    async fn run(self, client: &Client) -> Outcome {
        let role = match self.role {
            Some(role) => role,
            None => own(client).await?,
        };
        let link: Link = client.post("/v1/links", &CreateLink { role }).await?;
        write_out(&if self.format == Format::Json { json(&link)? } else { format!("{}\n", link.url) })
    }
}

/// Returns the caller's own role.
async fn own(client: &Client) -> Outcome<Role> {
    let identity: millpond_api::Identity = client.get("/v1/session").await?;
    let roles = [Role::Viewer, Role::Operator, Role::Admin];
    let unknown = || Failure::failed(format!("your role '{}' is not known; give --role", identity.role));
    roles.into_iter().find(|role| role.name() == identity.role.as_str()).ok_or_else(unknown)
}
