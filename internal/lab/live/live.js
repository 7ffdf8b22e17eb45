'use strict'
const lang = document.body.dataset.lang
const width = window.innerWidth < 820 ? 'narrow' : 'wide'
const buttons = document.querySelectorAll('[data-run]')
const running = new Set()
let connected = true

function section(name) {
  return document.getElementById(name)
}

// A button that is disabled loses the focus, so that the keyboard begins at the top again.
function allow() {
  for (const button of buttons) button.setAttribute('aria-disabled', String(!connected || running.size > 0))
}

for (const button of buttons) {
  button.addEventListener('click', async () => {
    if (button.getAttribute('aria-disabled') === 'true') return
    const state = section(button.dataset.run).querySelector('.state')
    try {
      const answer = await fetch(`run/${button.dataset.run}?lang=${lang}`, { method: 'POST' })
      if (!answer.ok) state.textContent = await answer.text()
    } catch {
      connection(false)
    }
  })
}

function connection(is) {
  connected = is
  document.querySelector('.connection').textContent = is ? '' : document.body.dataset.ended
  allow()
}

function show(message) {
  const s = JSON.parse(message.data)
  const at = section(s.name)
  const state = s.running ? document.body.dataset.running : s.failed || ''
  const says = at.querySelector('.state')
  if (says.textContent !== state) says.textContent = state // a screen reader reads each change
  at.querySelector('.result').innerHTML = s.html // the server has escaped what is in it
  at.classList.toggle('running', s.running)
  at.classList.toggle('failed', Boolean(s.failed))
  running[s.running ? 'add' : 'delete'](s.name)
  allow()
}

// A browser has few connections to one server: a page that nobody sees takes none. The
// server begins each connection with all that it knows.
let events = null
function watch() {
  if (document.hidden) {
    events?.close()
    events = null
  } else if (!events) {
    events = new EventSource(`events?lang=${lang}&width=${width}`)
    events.onopen = () => connection(true)
    events.onerror = () => connection(false)
    events.onmessage = show
  }
}
document.addEventListener('visibilitychange', watch)
watch()
