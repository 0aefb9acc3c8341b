//! Policies.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use millpond_api::{ApiError, CreatePolicy, ErrorBody, ErrorKind, Policy, PolicyRun, PolicyVolumes, Role, RunPolicy, SetPolicy};
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::carry_out::soon;
use super::input::{Body, QueryString};
use super::refused::Refused;
use crate::Daemon;
use crate::access::Caller;

pub(super) fn routes() -> OpenApiRouter<Arc<Daemon>> {
    OpenApiRouter::new()
        .routes(routes!(list, create))
        .routes(routes!(get, set, destroy))
        .routes(routes!(attach))
        .routes(routes!(detach))
        .routes(routes!(run))
}

/// Lists policies by name.
#[utoipa::path(get, path = "/v1/policies", responses((status = 200, body = [Policy]), (status = "default", body = ErrorBody)))]
async fn list(State(daemon): State<Arc<Daemon>>) -> Json<Vec<Policy>> {
    daemon.name_policy_volumes().await;
    Json(daemon.list_policies())
}

/// Creates a policy, without volumes.
///
/// Durable when answered.
#[utoipa::path(post, path = "/v1/policies", request_body = CreatePolicy,
    responses((status = 200, body = Policy), (status = "default", body = ErrorBody)))]
async fn create(State(daemon): State<Arc<Daemon>>, caller: Caller, Body(request): Body<CreatePolicy>) -> Result<Json<Policy>, Refused> {
    check_send(&caller, request.send.as_deref())?;
    soon(&daemon, |daemon| async move { daemon.create_policy(&request) }).await.map(Json)
}

/// Returns one policy.
#[utoipa::path(get, path = "/v1/policies/{name}", params(("name" = String, Path)),
    responses((status = 200, body = Policy), (status = "default", body = ErrorBody)))]
async fn get(State(daemon): State<Arc<Daemon>>, Path(name): Path<String>) -> Result<Json<Policy>, Refused> {
    daemon.name_policy_volumes().await;
    Ok(daemon.policy(&name).map(Json)?)
}

/// Changes properties of a policy.
///
/// Durable when answered.
#[utoipa::path(patch, path = "/v1/policies/{name}", params(("name" = String, Path)), request_body = SetPolicy,
    responses((status = 200, body = Policy), (status = "default", body = ErrorBody)))]
async fn set(
    State(daemon): State<Arc<Daemon>>,
    caller: Caller,
    Path(name): Path<String>,
    Body(request): Body<SetPolicy>,
) -> Result<Json<Policy>, Refused> {
    check_send(&caller, request.send.as_deref())?;
    soon(&daemon, |daemon| async move { daemon.set_policy(&name, &request) }).await.map(Json)
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct DestroyQuery {
    /// If true, only reports the policy.
    #[serde(default)]
    dry_run: bool,
}

/// Destroys a policy. Its snapshots stay.
///
/// Durable when answered.
#[utoipa::path(delete, path = "/v1/policies/{name}", params(("name" = String, Path), DestroyQuery),
    responses((status = 200, body = Policy), (status = "default", body = ErrorBody)))]
async fn destroy(
    State(daemon): State<Arc<Daemon>>,
    Path(name): Path<String>,
    QueryString(query): QueryString<DestroyQuery>,
) -> Result<Json<Policy>, Refused> {
    soon(&daemon, |daemon| async move { daemon.destroy_policy(&name, query.dry_run) }).await.map(Json)
}

/// Puts volumes under a policy.
///
/// Durable when answered.
#[utoipa::path(post, path = "/v1/policies/{name}/attach", params(("name" = String, Path)), request_body = PolicyVolumes,
    responses((status = 200, body = Policy), (status = "default", body = ErrorBody)))]
async fn attach(
    State(daemon): State<Arc<Daemon>>,
    caller: Caller,
    Path(name): Path<String>,
    Body(request): Body<PolicyVolumes>,
) -> Result<Json<Policy>, Refused> {
    let target = daemon.policy(&name)?.send;
    check_send(&caller, target.as_deref())?;
    if let Some((target, pools)) = target.as_ref().zip(caller.pools.as_ref()).filter(|(target, pools)| !pools.contains(*target)) {
        let own = pools.iter().cloned().collect::<Vec<_>>().join(", ");
        let message = format!("the policy sends to {target}, and {} may use only {own}", caller.who);
        return Err(ApiError::new(ErrorKind::Forbidden, message).into());
    }
    soon(&daemon, |daemon| async move { daemon.attach_policy(&name, &request).await }).await.map(Json)
}

/// Removes volumes from a policy. Their snapshots stay.
///
/// Durable when answered.
#[utoipa::path(post, path = "/v1/policies/{name}/detach", params(("name" = String, Path)), request_body = PolicyVolumes,
    responses((status = 200, body = Policy), (status = "default", body = ErrorBody)))]
async fn detach(
    State(daemon): State<Arc<Daemon>>,
    Path(name): Path<String>,
    Body(request): Body<PolicyVolumes>,
) -> Result<Json<Policy>, Refused> {
    soon(&daemon, |daemon| async move { daemon.detach_policy(&name, &request).await }).await.map(Json)
}

/// Runs a policy now.
///
/// Snapshots are durable when answered.
#[utoipa::path(post, path = "/v1/policies/{name}/run", params(("name" = String, Path)), request_body = RunPolicy,
    responses((status = 200, body = PolicyRun), (status = "default", body = ErrorBody)))]
async fn run(
    State(daemon): State<Arc<Daemon>>,
    Path(name): Path<String>,
    Body(request): Body<RunPolicy>,
) -> Result<Json<PolicyRun>, Refused> {
    soon(&daemon, |daemon| async move { daemon.run_policy(&name, &request).await }).await.map(Json)
}

/// Refuses targets outside of this daemon to operators: they are reached with the rights of the
/// daemon's user.
fn check_send(caller: &Caller, target: Option<&str>) -> Result<(), ApiError> {
    if caller.role < Role::Admin && target.is_some_and(|target| target.contains('/')) {
        let message = format!("{} is no admin, so it may send to pools of this daemon only", caller.who);
        return Err(ApiError::new(ErrorKind::Forbidden, message));
    }
    Ok(())
}
