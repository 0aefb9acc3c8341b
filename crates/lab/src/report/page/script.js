(function () {
  var tip = document.createElement('div');
  tip.id = 'tip';
  document.body.appendChild(tip);
  function show(event) {
    var at = event.target.closest && event.target.closest('[data-tip]');
    if (!at) { tip.style.display = 'none'; return; }
    tip.textContent = at.getAttribute('data-tip');
    tip.style.display = 'block';
    tip.style.left = Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8) + 'px';
    tip.style.top = Math.max(event.clientY - tip.offsetHeight - 10, 4) + 'px';
  }
  addEventListener('pointermove', show);
  addEventListener('pointerdown', show);
  addEventListener('scroll', function () { tip.style.display = 'none'; }, true);
  addEventListener('click', function (event) {
    var button = event.target.closest && event.target.closest('[data-toggle]');
    if (button) {
      var off = button.classList.toggle('off');
      button.setAttribute('aria-pressed', String(!off));
      button.closest('figure').querySelectorAll('[data-line]').forEach(function (line) {
        if (line.getAttribute('data-line') === button.getAttribute('data-toggle')) { line.classList.toggle('hidden', off); }
      });
    }
    if (event.target.id === 'theme') {
      var root = document.documentElement;
      var dark = root.dataset.theme ? root.dataset.theme === 'dark' : matchMedia('(prefers-color-scheme: dark)').matches;
      root.dataset.theme = dark ? 'light' : 'dark';
    }
  });
})();
