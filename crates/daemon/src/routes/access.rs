//! Tokens, links to the console, and its sessions.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Extension, Path, State};
use axum::http::header::SET_COOKIE;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use millpond_api::{ApiError, CreateLink, CreateToken, CreatedToken, ErrorBody, ErrorKind, Identity, Link, Login, Token, instant};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::guard::cookie_name;
use super::input::Body;
use super::refused::Refused;
use crate::Daemon;
use crate::access::{Caller, Peer};
use crate::locks::blocking;

pub(super) fn routes() -> OpenApiRouter<Arc<Daemon>> {
    OpenApiRouter::new().routes(routes!(list, create)).routes(routes!(destroy)).routes(routes!(link)).routes(routes!(login, get, logout))
}

/// Lists tokens by name, without their secrets.
#[utoipa::path(get, path = "/v1/tokens", responses((status = 200, body = [Token]), (status = "default", body = ErrorBody)))]
async fn list(State(daemon): State<Arc<Daemon>>) -> Json<Vec<Token>> {
    Json(daemon.list_tokens())
}

/// Creates a token. Its secret is in this answer only.
///
/// Durable when answered.
#[utoipa::path(post, path = "/v1/tokens", request_body = CreateToken,
    responses((status = 200, body = CreatedToken), (status = "default", body = ErrorBody)))]
async fn create(
    State(daemon): State<Arc<Daemon>>,
    caller: Caller,
    Body(request): Body<CreateToken>,
) -> Result<Json<CreatedToken>, Refused> {
    Ok(blocking(move || daemon.create_token(&caller, request)).await.map(Json)?)
}

/// Destroys a token, and ends the sessions that began with it.
///
/// Durable when answered.
#[utoipa::path(delete, path = "/v1/tokens/{name}", params(("name" = String, Path)),
    responses((status = 204), (status = "default", body = ErrorBody)))]
async fn destroy(State(daemon): State<Arc<Daemon>>, caller: Caller, Path(name): Path<String>) -> Result<StatusCode, Refused> {
    Ok(blocking(move || daemon.destroy_token(&caller, &name)).await.map(|()| StatusCode::NO_CONTENT)?)
}

/// Makes a link that opens the console once, within ten minutes.
#[utoipa::path(post, path = "/v1/links", request_body = CreateLink,
    responses((status = 200, body = Link), (status = "default", body = ErrorBody)))]
async fn link(State(daemon): State<Arc<Daemon>>, caller: Caller, Body(request): Body<CreateLink>) -> Result<Json<Link>, Refused> {
    Ok(daemon.make_link(&caller, request.role).map(Json)?)
}

/// Opens a session of the console with the code of a link or with a token. The answer sets a cookie.
#[utoipa::path(post, path = "/v1/session", request_body = Login,
    responses((status = 200, body = Identity), (status = "default", body = ErrorBody)))]
async fn login(
    State(daemon): State<Arc<Daemon>>,
    Extension(peer): Extension<Peer>,
    Body(request): Body<Login>,
) -> Result<Response, Refused> {
    let Peer::Remote { address, port, tls } = peer else {
        return Err(ApiError::invalid("sessions are for browsers, over TCP; the control socket knows its callers").into());
    };
    let now = instant::now();
    let caller = match (request.code, request.token) {
        (Some(code), None) => daemon.access.sessions().redeem(&code, now),
        (None, Some(token)) => daemon.access.tokens().bearer(&token, now),
        _ => return Err(ApiError::usage("a login has either the code of a link or a token").into()),
    };
    let caller = match caller {
        Ok(caller) => caller,
        Err(error) => return Ok(super::guard::refuse(&daemon, error, Some(address))),
    };
    let opened = daemon.access.sessions().open(caller, now)?;
    tracing::info!(who = opened.caller.who, from = %address, "session opened");
    let secure = if tls { "; Secure" } else { "" };
    let cookie = format!("{}={}; Path=/; HttpOnly; SameSite=Strict{secure}", cookie_name(port, tls), opened.cookie);
    let cookie = HeaderValue::from_str(&cookie).map_err(|e| ApiError::internal(e.to_string()))?;
    let mut response = Json(identity(&daemon, &opened.caller)).into_response();
    response.headers_mut().insert(SET_COOKIE, cookie);
    Ok(response)
}

/// Returns the caller of this request.
#[utoipa::path(get, path = "/v1/session", responses((status = 200, body = Identity), (status = "default", body = ErrorBody)))]
async fn get(State(daemon): State<Arc<Daemon>>, caller: Caller) -> Json<Identity> {
    Json(identity(&daemon, &caller))
}

/// Ends the session of this request.
#[utoipa::path(delete, path = "/v1/session", responses((status = 204), (status = "default", body = ErrorBody)))]
async fn logout(State(daemon): State<Arc<Daemon>>, caller: Caller) -> Result<StatusCode, Refused> {
    let session = caller.session.ok_or_else(|| ApiError::new(ErrorKind::Invalid, "this request belongs to no session"))?;
    daemon.access.sessions().close(&session);
    Ok(StatusCode::NO_CONTENT)
}

fn identity(daemon: &Daemon, caller: &Caller) -> Identity {
    let details = caller.session.and_then(|session| daemon.access.sessions().details(&session));
    let (csrf, expires) = details.map_or((None, None), |(csrf, ends)| (Some(csrf), Some(ends)));
    Identity { csrf, expires, ..caller.identity() }
}
