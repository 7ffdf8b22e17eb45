'use strict'
const lang = document.body.dataset.lang
const width = window.innerWidth < 820 ? 'narrow' : 'wide'

function section(name) {
  return document.getElementById(name)
}

for (const button of document.querySelectorAll('[data-run]')) {
  button.addEventListener('click', async () => {
    const state = section(button.dataset.run).querySelector('.state')
    try {
      const answer = await fetch('run/' + button.dataset.run, { method: 'POST' })
      if (!answer.ok) state.textContent = await answer.text()
    } catch (err) {
      state.textContent = String(err)
    }
  })
}

const running = new Set()

// The server sends pictures and tables that it has escaped.
const events = new EventSource(`events?lang=${lang}&width=${width}`)
events.onmessage = (message) => {
  const s = JSON.parse(message.data)
  const at = section(s.name)
  at.querySelector('.state').textContent = s.running ? document.body.dataset.running : s.failed || ''
  at.querySelector('.result').innerHTML = s.html
  at.classList.toggle('running', s.running)
  at.classList.toggle('failed', Boolean(s.failed))
  running[s.running ? 'add' : 'delete'](s.name)
  for (const button of document.querySelectorAll('[data-run]')) button.disabled = running.size > 0
}
